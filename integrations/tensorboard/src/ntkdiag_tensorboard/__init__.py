"""Kernel diagnostics of ntkdiag in TensorBoard."""

from ntkdiag_tensorboard.writer import TensorBoardWriter as TensorBoardWriter
