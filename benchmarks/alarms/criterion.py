"""What a spike is, written down before the runs that are reported were made.

The loss of each step's batch, l_t, is smoothed: m_t is the median of l_t .. l_{t+4}, so that one
odd batch is none. The past of step t are the steps t - 50 .. t - 1, 20 at least, with their median
and the deviation s of neighbours (1.4826 / sqrt(2) times the median of |l_i - l_{i-1}|), which a
slow change of the loss does not widen. A spike begins at the first step with

    m_t - median of the past  >  max(6 s, 0.15 l),     l = log(classes), the loss of guessing,

or where the loss is not finite. So what happens in the first 20 steps is no spike, but a beginning:
there is no past to judge by.
"""

import numpy as np
from jaxtyping import Float

SMOOTHED = 5
PAST = 50
FEWEST = 20
DEVIATIONS = 6.0
SHARE_OF_GUESSING = 0.15


def spike_step(losses: Float[np.ndarray, " s"], guessing: float) -> int | None:
    """The step at which the first spike begins; None where there is none.

    Args:
        losses: Of every step.
        guessing: The loss of who guesses, log(classes).
    """
    for t in range(FEWEST, len(losses)):
        if not np.isfinite(losses[t]):
            return t
        smooth = np.median(losses[t : t + SMOOTHED])
        past = losses[max(t - PAST, 0) : t]
        usual = np.median(past)
        deviation = 1.4826 / np.sqrt(2.0) * np.median(np.abs(np.diff(past)))
        if not smooth - usual <= max(DEVIATIONS * deviation, SHARE_OF_GUESSING * guessing):
            return t
    return None
