"""Linear and Taylor models of a network, and how good they are."""

from ntkdiag.linearize import matrix_free as matrix_free
from ntkdiag.linearize import predict as predict
from ntkdiag.linearize.baseline import Contender as Contender
from ntkdiag.linearize.baseline import GapHistory as GapHistory
from ntkdiag.linearize.baseline import LinearBaseline as LinearBaseline
from ntkdiag.linearize.baseline import gap_over_training as gap_over_training
from ntkdiag.linearize.baseline import linear_baseline as linear_baseline
from ntkdiag.linearize.gap import LinearizationGap as LinearizationGap
from ntkdiag.linearize.gap import linearization_gap as linearization_gap
from ntkdiag.linearize.last_layer import last_layer as last_layer
from ntkdiag.linearize.linearize import linearize as linearize
from ntkdiag.linearize.matrix_free import NTKOperator as NTKOperator
from ntkdiag.linearize.model import linearized_model as linearized_model
from ntkdiag.linearize.taylor import taylor_expand as taylor_expand
