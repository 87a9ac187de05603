"""The calls of neural-tangents' empirical module on the tangent engine."""

from ntkdiag.compat import predict as predict
from ntkdiag.compat.batching import batch as batch
from ntkdiag.compat.empirical import empirical_ntk_fn as empirical_ntk_fn
from ntkdiag.compat.expand import linearize as linearize
from ntkdiag.compat.expand import taylor_expand as taylor_expand
from ntkdiag.compat.implementation import NtkImplementation as NtkImplementation
from ntkdiag.compat.kernel_function import empirical_kernel_fn as empirical_kernel_fn
from ntkdiag.compat.nngp import empirical_nngp_fn as empirical_nngp_fn
from ntkdiag.compat.per_input import PerInput as PerInput
from ntkdiag.compat.per_input import Shared as Shared
from ntkdiag.compat.vector_product import empirical_ntk_vp_fn as empirical_ntk_vp_fn
