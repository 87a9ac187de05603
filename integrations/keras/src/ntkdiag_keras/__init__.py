"""Kernel diagnostics of ntkdiag for Keras 3 models on the JAX backend."""

from ntkdiag_keras.adapter import functionalize as functionalize
from ntkdiag_keras.adapter import log_probabilities as log_probabilities
from ntkdiag_keras.callback import NTKCallback as NTKCallback
