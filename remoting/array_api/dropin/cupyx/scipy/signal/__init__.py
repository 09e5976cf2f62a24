"""Signal processing."""

from cupyx import _extensions
from cupyx.scipy.signal import windows as windows
from cupyx.scipy.signal._extrema import argrelextrema as argrelextrema

_extensions.fill(globals())
