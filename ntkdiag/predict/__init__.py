"""Training of the linearized model without a network: kernels in, outputs at any time out."""

from ntkdiag.predict.any_loss import integrate_flow as integrate_flow
from ntkdiag.predict.any_loss import iterate_descent as iterate_descent
from ntkdiag.predict.mse import gradient_descent as gradient_descent
from ntkdiag.predict.mse import gradient_flow as gradient_flow
from ntkdiag.predict.problem import Prediction as Prediction
