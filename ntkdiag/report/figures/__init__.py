"""Results -> inline SVG."""

from ntkdiag.report.figures.heatmaps import heatmaps as heatmaps
from ntkdiag.report.figures.history import history as history
from ntkdiag.report.figures.labels import label_power as label_power
from ntkdiag.report.figures.movement import movement as movement
from ntkdiag.report.figures.prediction import prediction as prediction
from ntkdiag.report.figures.spectra import spectra as spectra
