"""Exceptions and warnings, which are NumPy's."""

import numpy as _np
from numpy.exceptions import AxisError as AxisError
from numpy.exceptions import ComplexWarning as ComplexWarning
from numpy.exceptions import ModuleDeprecationWarning as ModuleDeprecationWarning
from numpy.exceptions import TooHardError as TooHardError
from numpy.exceptions import VisibleDeprecationWarning as VisibleDeprecationWarning

# NumPy 1.26 has it in its main namespace only.
RankWarning = getattr(_np.exceptions, "RankWarning", None) or getattr(_np, "RankWarning")  # noqa: B009
