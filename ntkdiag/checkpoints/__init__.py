"""Orbax checkpoints -> parameters, and two of them -> a comparison."""

from ntkdiag.checkpoints.compare import compare as compare
from ntkdiag.checkpoints.comparison import Comparison as Comparison
from ntkdiag.checkpoints.params import load_params as load_params
