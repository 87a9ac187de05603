"""Model -> f(params, x, **kwargs), params, restore."""

from ntkdiag.adapters.functional import Functional as Functional
from ntkdiag.adapters.functionalize import functionalize as functionalize
from ntkdiag.adapters.structure import differences as differences
from ntkdiag.adapters.structure import leaves_by_path as leaves_by_path
from ntkdiag.adapters.structure import path_string as path_string
from ntkdiag.adapters.structure import require_same as require_same
