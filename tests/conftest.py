"""What holds for all tests."""

from hypothesis import settings

# A shared machine can stop for longer than any deadline that would mean something.
settings.register_profile("gpupool", deadline=None)
settings.load_profile("gpupool")
