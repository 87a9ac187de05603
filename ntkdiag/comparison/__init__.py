"""Two checkpoints -> what changed between them."""

from ntkdiag.comparison.comparison import Comparison as Comparison
