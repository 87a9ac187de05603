"""Linear and Taylor models of a network, and how good they are."""

from ntkdiag.linearization import matrix_free as matrix_free
from ntkdiag.linearization import predict as predict
from ntkdiag.linearization.baseline import Contender as Contender
from ntkdiag.linearization.baseline import GapHistory as GapHistory
from ntkdiag.linearization.baseline import LinearBaseline as LinearBaseline
from ntkdiag.linearization.baseline import gap_over_training as gap_over_training
from ntkdiag.linearization.baseline import linear_baseline as linear_baseline
from ntkdiag.linearization.gap import LinearizationGap as LinearizationGap
from ntkdiag.linearization.gap import linearization_gap as linearization_gap
from ntkdiag.linearization.last_layer import last_layer as last_layer
from ntkdiag.linearization.linearize import linearize as linearize
from ntkdiag.linearization.matrix_free import NTKOperator as NTKOperator
from ntkdiag.linearization.model import linearized_model as linearized_model
from ntkdiag.linearization.taylor import taylor_expand as taylor_expand
