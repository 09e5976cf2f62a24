"""Fourier, cosine, sine and Hankel transforms."""

from typing import Any

import cupy as _cupy

from cupyx import _extensions
from cupyx.scipy.fftpack import get_fft_plan as get_fft_plan
from cupyx.scipy.fftpack import with_plan as _with_plan

_extensions.fill(globals())


def _planned(name: str) -> Any:
    whole: Any = globals()[name]
    computed = getattr(_cupy.fft, name)

    def function(*args: Any, **kwargs: object) -> Any:
        plan = kwargs.pop("plan", None)
        if plan is None:
            return whole(*args, **kwargs)
        if "hfft" in name:
            raise NotImplementedError(f"{name} with a plan is not yet supported, as in CuPy")
        kwargs.pop("overwrite_x", None)
        if args and args[0].dtype.char == "e":
            args = (args[0].astype("f"), *args[1:])  # cuFFT has no plan for half precision here
        return _with_plan(computed, plan, *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__module__ = whole.__module__
    function.__doc__ = whole.__doc__
    return function


for _name in list(globals()["__all__"]):
    if hasattr(_cupy.fft, _name) and not _name.endswith(("freq", "shift")):
        globals()[_name] = _planned(_name)


#: `scipy.fft.set_backend` takes this module for its functions, by these two names.
__ua_domain__ = "numpy.scipy.fft"


def __ua_function__(method: Any, args: Any, kwargs: Any) -> Any:
    """Run the function of the same name; `NotImplemented` if there is none."""
    function = globals().get(method.__name__) if method.__name__ in globals()["__all__"] else None
    return NotImplemented if function is None else function(*args, **kwargs)
