"""The calls of neural-tangents' empirical module on the engine of `ntkdiag.ntk`."""

from ntkdiag.neural_tangents import predict as predict
from ntkdiag.neural_tangents.batching import batch as batch
from ntkdiag.neural_tangents.empirical import NtkImplementation as NtkImplementation
from ntkdiag.neural_tangents.empirical import empirical_kernel_fn as empirical_kernel_fn
from ntkdiag.neural_tangents.empirical import empirical_nngp_fn as empirical_nngp_fn
from ntkdiag.neural_tangents.empirical import empirical_ntk_fn as empirical_ntk_fn
from ntkdiag.neural_tangents.expand import linearize as linearize
from ntkdiag.neural_tangents.expand import taylor_expand as taylor_expand
from ntkdiag.neural_tangents.per_input import Shared as Shared
from ntkdiag.neural_tangents.vector_product import empirical_ntk_vp_fn as empirical_ntk_vp_fn
