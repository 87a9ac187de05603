"""Orbax checkpoints -> parameters, and two of them -> a comparison."""

from ntkdiag.checkpoints.params import load_params as load_params
