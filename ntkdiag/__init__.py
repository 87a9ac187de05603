"""ntkdiag: training diagnostics for Flax and Equinox models, built on the empirical neural tangent kernel."""

from ntkdiag import analysis as analysis
from ntkdiag import errors as errors
from ntkdiag import monitor as monitor
from ntkdiag.adapters import Functional as Functional
from ntkdiag.adapters import functionalize as functionalize
from ntkdiag.analysis import alignment as alignment
from ntkdiag.analysis import critical_learning_rate as critical_learning_rate
from ntkdiag.analysis import drift as drift
from ntkdiag.analysis import spectrum as spectrum
from ntkdiag.analysis import stability_margin as stability_margin
from ntkdiag.analysis import top_spectrum as top_spectrum
from ntkdiag.checking import SelfCheck as SelfCheck
from ntkdiag.checking import selfcheck as selfcheck
from ntkdiag.checkpoints import Comparison as Comparison
from ntkdiag.checkpoints import compare as compare
from ntkdiag.checkpoints import load_params as load_params
from ntkdiag.compat import NtkImplementation as NtkImplementation
from ntkdiag.compat import PerInput as PerInput
from ntkdiag.compat import Shared as Shared
from ntkdiag.compat import batch as batch
from ntkdiag.compat import empirical_kernel_fn as empirical_kernel_fn
from ntkdiag.compat import empirical_nngp_fn as empirical_nngp_fn
from ntkdiag.compat import empirical_ntk_fn as empirical_ntk_fn
from ntkdiag.compat import empirical_ntk_vp_fn as empirical_ntk_vp_fn
from ntkdiag.kernels import Convention as Convention
from ntkdiag.kernels import Kernel as Kernel
from ntkdiag.kernels import Plan as Plan
from ntkdiag.kernels import RandomProjections as RandomProjections
from ntkdiag.kernels import clear_caches as clear_caches
from ntkdiag.kernels import ntk as ntk
from ntkdiag.kernels import plan as plan
from ntkdiag.linearization import NTKOperator as NTKOperator
from ntkdiag.linearization import linear_baseline as linear_baseline
from ntkdiag.linearization import linearization_gap as linearization_gap
from ntkdiag.linearization import linearize as linearize
from ntkdiag.linearization import linearized_model as linearized_model
from ntkdiag.linearization import matrix_free as matrix_free
from ntkdiag.linearization import predict as predict
from ntkdiag.linearization import taylor_expand as taylor_expand
from ntkdiag.monitor import JsonLines as JsonLines
from ntkdiag.monitor import Monitor as Monitor
from ntkdiag.monitor import watch as watch

__version__ = "0.1.0"
