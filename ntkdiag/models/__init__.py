"""A model of some library -> f(params, x, **kwargs), its parameters, and the way back."""

from ntkdiag.models.dispatch import functionalize as functionalize
from ntkdiag.models.functional import Functional as Functional
from ntkdiag.models.registry import register as register
