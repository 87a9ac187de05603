"""Two checkpoints, or all of a run -> what changed between them."""

from ntkdiag.comparison.comparison import Comparison as Comparison
from ntkdiag.comparison.tracked import Track as Track
