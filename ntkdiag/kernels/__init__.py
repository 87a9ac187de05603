"""Factors -> kernels."""

from ntkdiag.kernels.caches import clear_caches as clear_caches
from ntkdiag.kernels.convention import Convention as Convention
from ntkdiag.kernels.kernel import Kernel as Kernel
from ntkdiag.kernels.ntk import ntk as ntk
from ntkdiag.kernels.ntk import plan as plan
from ntkdiag.kernels.plan import Plan as Plan
from ntkdiag.kernels.plan import PlanRow as PlanRow
from ntkdiag.kernels.reduction import RandomProjections as RandomProjections
