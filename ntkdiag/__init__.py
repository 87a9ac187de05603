"""ntkdiag: training diagnostics for Flax and Equinox models, built on the empirical neural tangent kernel."""

from ntkdiag import errors as errors
from ntkdiag.kernels import Convention as Convention
from ntkdiag.kernels import Kernel as Kernel
from ntkdiag.kernels import ntk as ntk

__version__ = "0.1.0"
