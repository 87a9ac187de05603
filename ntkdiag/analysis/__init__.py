"""Kernels -> numbers with a meaning."""

from ntkdiag.analysis.alignment import alignment as alignment
from ntkdiag.analysis.alignment import label_power as label_power
from ntkdiag.analysis.alignment import mode_power as mode_power
from ntkdiag.analysis.drift import Drift as Drift
from ntkdiag.analysis.drift import drift as drift
from ntkdiag.analysis.drift import kernel_distance as kernel_distance
from ntkdiag.analysis.drift import velocity as velocity
from ntkdiag.analysis.momentum import stability_threshold as stability_threshold
from ntkdiag.analysis.rank import effective_dimension as effective_dimension
from ntkdiag.analysis.rank import entropy_rank as entropy_rank
from ntkdiag.analysis.rank import participation_ratio as participation_ratio
from ntkdiag.analysis.rank import stable_rank as stable_rank
from ntkdiag.analysis.spectrum import Spectrum as Spectrum
from ntkdiag.analysis.spectrum import spectrum as spectrum
from ntkdiag.analysis.stability import critical_learning_rate as critical_learning_rate
from ntkdiag.analysis.stability import stability_margin as stability_margin
