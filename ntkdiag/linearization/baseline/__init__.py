"""The linearized model as a baseline: trained beside the network, compared along the way and at the end."""

from ntkdiag.linearization.baseline.comparison import linear_baseline as linear_baseline
from ntkdiag.linearization.baseline.history import GapHistory as GapHistory
from ntkdiag.linearization.baseline.history import gap_over_training as gap_over_training
from ntkdiag.linearization.baseline.result import Contender as Contender
from ntkdiag.linearization.baseline.result import LinearBaseline as LinearBaseline
