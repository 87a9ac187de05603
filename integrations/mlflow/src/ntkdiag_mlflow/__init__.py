"""Kernel diagnostics of ntkdiag in MLflow."""

from ntkdiag_mlflow.writer import MlflowWriter as MlflowWriter
