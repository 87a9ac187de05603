"""A model of some library -> f(params, x, **kwargs), its parameters, and the way back."""

from ntkdiag.models.dispatch import functionalize as functionalize
from ntkdiag.models.functional import Functional as Functional
from ntkdiag.models.optax_labels import labelled as labelled
from ntkdiag.models.outputs import activations as activations
from ntkdiag.models.outputs import example_loss as example_loss
from ntkdiag.models.outputs import label_logit as label_logit
from ntkdiag.models.outputs import last_token as last_token
from ntkdiag.models.registry import register as register
