"""Is this model, as ntkdiag sees it, the one that was meant?"""

from ntkdiag.selfcheck.result import Finding as Finding
from ntkdiag.selfcheck.result import Leaf as Leaf
from ntkdiag.selfcheck.result import SelfCheck as SelfCheck
from ntkdiag.selfcheck.selfcheck import selfcheck as selfcheck
