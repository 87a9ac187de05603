"""Results -> inline SVG."""

from ntkdiag.report.figures.change_scatter import prediction as prediction
from ntkdiag.report.figures.heatmaps import heatmaps as heatmaps
from ntkdiag.report.figures.label_power import label_power as label_power
from ntkdiag.report.figures.motion_bars import movement as movement
from ntkdiag.report.figures.spectra import spectra as spectra
from ntkdiag.report.figures.training_curves import history as history
