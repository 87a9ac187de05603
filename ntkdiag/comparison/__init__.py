"""Two checkpoints, or all of a run -> what changed between them."""

from ntkdiag.comparison.comparison import Comparison as Comparison
from ntkdiag.comparison.seed_mean import SeedMean as SeedMean
from ntkdiag.comparison.several_runs import Runs as Runs
from ntkdiag.comparison.tracked import Track as Track
