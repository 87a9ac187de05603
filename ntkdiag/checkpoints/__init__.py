"""Checkpoints on disk -> parameters; knows nothing of kernels."""

from ntkdiag.checkpoints.new_steps import new_steps as new_steps
from ntkdiag.checkpoints.params import load_params as load_params
