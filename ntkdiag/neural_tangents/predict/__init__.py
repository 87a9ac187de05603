"""neural-tangents' predictions for finite networks: trained outputs from kernels."""

from ntkdiag.neural_tangents.predict.predictions import gradient_descent as gradient_descent
from ntkdiag.neural_tangents.predict.predictions import gradient_descent_mse as gradient_descent_mse
from ntkdiag.neural_tangents.predict.predictions import max_learning_rate as max_learning_rate
