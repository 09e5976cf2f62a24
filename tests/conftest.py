"""What holds for all tests."""

import os
import signal

from hypothesis import settings

# A shared machine can stop for longer than any deadline that would mean something.
settings.register_profile("gpupool", deadline=None)
settings.load_profile("gpupool")

# Shells start what runs in the background with these ignored, and so would every program of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Where tests run in several processes, their environment has a width of 80; the terminals of tests
# have sizes of their own.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
