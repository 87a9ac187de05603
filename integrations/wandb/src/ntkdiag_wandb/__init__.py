"""Kernel diagnostics of ntkdiag in Weights & Biases."""

from ntkdiag_wandb.writer import WandbWriter as WandbWriter
