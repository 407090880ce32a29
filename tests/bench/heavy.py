"""The same handlers in a module that imports as much as a numerical application does."""

import numpy
import scipy.linalg
import scipy.optimize

from tests.bench.handlers import handlers

__all__ = ["handlers", "numpy", "scipy"]
