"""Kernels -> numbers with a meaning."""

from ntkdiag.analysis.alignment import Alignment as Alignment
from ntkdiag.analysis.alignment import alignment as alignment
from ntkdiag.analysis.alignment import alignment_beside_chance as alignment_beside_chance
from ntkdiag.analysis.alignment import label_power as label_power
from ntkdiag.analysis.drift import Drift as Drift
from ntkdiag.analysis.drift import drift as drift
from ntkdiag.analysis.generalization import LeaveOneOut as LeaveOneOut
from ntkdiag.analysis.generalization import leave_one_out as leave_one_out
from ntkdiag.analysis.health import Health as Health
from ntkdiag.analysis.health import health as health
from ntkdiag.analysis.modes import reachable_power as reachable_power
from ntkdiag.analysis.modes import spectral_position as spectral_position
from ntkdiag.analysis.modes import steps_to_residual as steps_to_residual
from ntkdiag.analysis.modes import time_constants as time_constants
from ntkdiag.analysis.stability import critical_learning_rate as critical_learning_rate
from ntkdiag.analysis.stability import stability_margin as stability_margin
