"""All figures of a run by name, and the pages of the report that they are on."""

from collections.abc import Mapping

from ntkdiag.report.figures.run_figure import RunFigure
from ntkdiag.report.figures.run_kernel import KERNEL
from ntkdiag.report.figures.run_labels import LABELS
from ntkdiag.report.figures.run_layers import EXAMPLES, LAYERS
from ntkdiag.report.figures.run_regime import REGIME
from ntkdiag.report.figures.run_training import TRAINING

# Page -> its title, in the order of the report.
PAGES: Mapping[str, str] = {
    "training": "Will it train?",
    "regime": "Regime",
    "kernel": "Which kernel",
    "generalization": "Generalization",
    "layers": "Layers",
    "examples": "Examples",
}

RUN_FIGURES: Mapping[str, RunFigure] = {
    figure.name: figure for figure in (*TRAINING, *REGIME, *KERNEL, *LABELS, *LAYERS, *EXAMPLES)
}
