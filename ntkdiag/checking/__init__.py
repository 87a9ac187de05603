"""Is this model, as ntkdiag sees it, the one that was meant?"""

from ntkdiag.checking.result import Finding as Finding
from ntkdiag.checking.result import Leaf as Leaf
from ntkdiag.checking.result import SelfCheck as SelfCheck
from ntkdiag.checking.selfcheck import selfcheck as selfcheck
