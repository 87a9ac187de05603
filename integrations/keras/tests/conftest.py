"""Keras chooses its backend when it is imported: before that, it is told here."""

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
