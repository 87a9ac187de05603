"""Training diagnostics for Flax and Equinox models, on the empirical neural tangent kernel."""

from ntkdiag import analysis as analysis
from ntkdiag import baselines as baselines
from ntkdiag import errors as errors
from ntkdiag import kernel as kernel
from ntkdiag import losses as losses
from ntkdiag import matrix_free as matrix_free
from ntkdiag import models as models
from ntkdiag import monitor as monitor
from ntkdiag import neural_tangents as neural_tangents
from ntkdiag import predict as predict
from ntkdiag.analysis import alignment as alignment
from ntkdiag.analysis import critical_learning_rate as critical_learning_rate
from ntkdiag.analysis import drift as drift
from ntkdiag.analysis import stability_margin as stability_margin
from ntkdiag.checking import selfcheck as selfcheck
from ntkdiag.checkpoints import load_params as load_params
from ntkdiag.comparison.compare import compare as compare
from ntkdiag.comparison.several_runs import open_runs as open_runs
from ntkdiag.comparison.track import track as track
from ntkdiag.descent import Descent as Descent
from ntkdiag.engine.calls.caches import clear_caches as clear_caches
from ntkdiag.engine.ntk import ntk as ntk
from ntkdiag.engine.ntk import plan as plan
from ntkdiag.kernel import Kernel as Kernel
from ntkdiag.kernel.decomposition import spectrum as spectrum
from ntkdiag.linearization.gap import linearization_gap as linearization_gap
from ntkdiag.linearization.same_library import linearized_model as linearized_model
from ntkdiag.linearization.taylor import linearize as linearize
from ntkdiag.linearization.taylor import taylor_expand as taylor_expand
from ntkdiag.matrix_free import NTKOperator as NTKOperator
from ntkdiag.matrix_free.top_spectrum import top_spectrum as top_spectrum
from ntkdiag.models import Functional as Functional
from ntkdiag.models import functionalize as functionalize
from ntkdiag.monitor import JsonLines as JsonLines
from ntkdiag.monitor import Monitor as Monitor
from ntkdiag.monitor import unwatch as unwatch
from ntkdiag.monitor import watch as watch
from ntkdiag.opened_run import Run as Run
from ntkdiag.opened_run import open_run as open_run

__version__ = "0.1.0"
