"""What a kernel is: its array, its convention, its spectrum, and how all others read it."""

from ntkdiag.kernel.kernel import Convention as Convention
from ntkdiag.kernel.kernel import Kernel as Kernel
from ntkdiag.kernel.reduction import RandomProjections as RandomProjections
from ntkdiag.kernel.spectrum import Spectrum as Spectrum
