"""Training of the linearised model without a network: kernels and outputs in, predictions at any time out."""

from ntkdiag.linearize.predict.any_loss import integrate_flow as integrate_flow
from ntkdiag.linearize.predict.any_loss import iterate_descent as iterate_descent
from ntkdiag.linearize.predict.mse import gradient_descent as gradient_descent
from ntkdiag.linearize.predict.mse import gradient_flow as gradient_flow
from ntkdiag.linearize.predict.origin import Origin as Origin
from ntkdiag.linearize.predict.origin import origin as origin
from ntkdiag.linearize.predict.prediction import Prediction as Prediction
