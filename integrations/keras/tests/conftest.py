"""Keras chooses its backend when it is imported: before that, it is told here.

Programs run once: compiling them takes longer than what optimizations of XLA save.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
