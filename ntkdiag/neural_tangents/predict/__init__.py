"""neural-tangents' predictions for finite networks: trained outputs from kernels."""

from ntkdiag.neural_tangents.predict.gradient_descent import gradient_descent as gradient_descent
from ntkdiag.neural_tangents.predict.gradient_descent_mse import (
    gradient_descent_mse as gradient_descent_mse,
)
from ntkdiag.neural_tangents.predict.gradient_descent_mse import (
    max_learning_rate as max_learning_rate,
)
