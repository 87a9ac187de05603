"""neural-tangents' predictions for finite networks: trained outputs from kernels."""

from ntkdiag.compat.predict.any_loss import gradient_descent as gradient_descent
from ntkdiag.compat.predict.learning_rate import max_learning_rate as max_learning_rate
from ntkdiag.compat.predict.mse import gradient_descent_mse as gradient_descent_mse
from ntkdiag.compat.predict.ode_state import ODEState as ODEState
