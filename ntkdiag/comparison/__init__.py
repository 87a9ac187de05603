"""Two checkpoints, or all of a run -> what changed between them."""

from ntkdiag.comparison.comparison import Comparison as Comparison
from ntkdiag.comparison.result import Result as Result
from ntkdiag.comparison.tracked import Track as Track
