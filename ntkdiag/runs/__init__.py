"""Run directories: what was measured over training, on disk, whatever it is a measurement of."""

from ntkdiag.runs.run_reader import Run as Run
from ntkdiag.runs.run_reader import open_run as open_run
