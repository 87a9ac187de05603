"""Checkpoints on disk -> parameters; knows nothing of kernels."""

from ntkdiag.checkpoints.params import load_params as load_params
