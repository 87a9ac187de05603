"""Keras 3 models on the JAX backend in ntkdiag."""

from ntkdiag_keras.adapter import functionalize as functionalize
