"""Is this model, as ntkdiag sees it, the one that was meant?"""

from ntkdiag.checking.check_model import selfcheck as selfcheck
from ntkdiag.checking.result import SelfCheck as SelfCheck
