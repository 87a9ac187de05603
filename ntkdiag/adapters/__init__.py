"""Model -> f(params, x, **kwargs), params, restore."""

from ntkdiag.adapters.functional import Functional as Functional
from ntkdiag.adapters.functionalize import functionalize as functionalize
from ntkdiag.adapters.labels import labelled as labelled
from ntkdiag.adapters.outputs import activations as activations
from ntkdiag.adapters.outputs import example_loss as example_loss
from ntkdiag.adapters.outputs import label_logit as label_logit
from ntkdiag.adapters.outputs import last_token as last_token
from ntkdiag.adapters.registry import register as register
from ntkdiag.adapters.structure import differences as differences
from ntkdiag.adapters.structure import leaves_by_path as leaves_by_path
from ntkdiag.adapters.structure import path_string as path_string
from ntkdiag.adapters.structure import require_same as require_same
