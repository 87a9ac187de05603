"""Gradients of single examples' losses: their Gram matrix, and what follows from it."""

from ntkdiag.gradients.example_losses import ExampleLosses as ExampleLosses
from ntkdiag.gradients.example_losses import example_losses as example_losses
from ntkdiag.gradients.gradient_kernel import gradient_kernel as gradient_kernel
from ntkdiag.gradients.influence import Influence as Influence
from ntkdiag.gradients.influence import influence as influence
from ntkdiag.gradients.interference import Interference as Interference
from ntkdiag.gradients.interference import interference as interference
