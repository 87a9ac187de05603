"""Factors -> kernels."""

from ntkdiag.kernels.convention import Convention as Convention
from ntkdiag.kernels.kernel import Kernel as Kernel
from ntkdiag.kernels.ntk import ntk as ntk
