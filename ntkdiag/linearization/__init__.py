"""Linear and Taylor models of a network, and how good they are."""

from ntkdiag.linearization.gap import LinearizationGap as LinearizationGap
from ntkdiag.linearization.gap import linearization_gap as linearization_gap
from ntkdiag.linearization.same_library import linearized_model as linearized_model
from ntkdiag.linearization.taylor import linearize as linearize
from ntkdiag.linearization.taylor import taylor_expand as taylor_expand
