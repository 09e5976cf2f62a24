"""Libraries of NVIDIA's hardware for video, which is not there: each call is refused."""

import ctypes
from pathlib import Path

import pytest

NOT_SUPPORTED = 801


@pytest.mark.parametrize(
    "name",
    [
        "cuvidGetDecoderCaps",
        "cuvidCreateDecoder",
        # nvJPEG of CUDA 13 calls what it finds under these names, without a look at it.
        "__std_2U4S4U_X08",
        "__std_2U4S4AD_X08",
    ],
)
def test_decoders_of_video_refuse(library: Path, name: str) -> None:
    """Without the last two, nvJPEG ended with a segmentation fault on an H200."""
    found = ctypes.CDLL(str(library / "libnvcuvid.so.1"))
    assert getattr(found, name)() == NOT_SUPPORTED
