"""Signal processing."""

from cupyx import _extensions
from cupyx.scipy.signal import windows as windows

_extensions.fill(globals())
