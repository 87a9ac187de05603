"""Checks that ntkdiag differentiates the model that you mean."""

from ntkdiag.checking.check_model import selfcheck as selfcheck
from ntkdiag.checking.result import SelfCheck as SelfCheck
