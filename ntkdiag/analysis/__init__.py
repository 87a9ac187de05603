"""Kernels -> numbers with a meaning."""

from ntkdiag.analysis.alignment import Alignment as Alignment
from ntkdiag.analysis.alignment import alignment as alignment
from ntkdiag.analysis.drift import Drift as Drift
from ntkdiag.analysis.drift import drift as drift
from ntkdiag.analysis.generalization import LeaveOneOut as LeaveOneOut
from ntkdiag.analysis.generalization import leave_one_out as leave_one_out
from ntkdiag.analysis.modes import Modes as Modes
from ntkdiag.analysis.modes import modes as modes
from ntkdiag.analysis.noise_scale import NoiseScale as NoiseScale
from ntkdiag.analysis.noise_scale import noise_scale as noise_scale
from ntkdiag.analysis.noise_scale import self_influence as self_influence
from ntkdiag.analysis.stability import critical_learning_rate as critical_learning_rate
from ntkdiag.analysis.stability import stability_margin as stability_margin
