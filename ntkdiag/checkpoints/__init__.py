"""Checkpoints on disk -> parameters; knows nothing of kernels."""

from ntkdiag.checkpoints.contents import load_params as load_params
from ntkdiag.checkpoints.location import new_steps as new_steps
