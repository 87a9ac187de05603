"""What labels are a finding of that all other examples contradict."""

import numpy as np
from jaxtyping import Float

from ntkdiag import display
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.label_doubt import DOUBTED, suspicious

_MOST_NAMED = 10  # examples


def label_findings(doubts: Float[np.ndarray, " n"]) -> list[Finding]:
    """A finding where labels are suspicious, by the doubts of `label_doubts`."""
    doubted = suspicious(doubts)
    if not len(doubted):
        return []
    named = display.some_of(doubted.tolist(), _MOST_NAMED)
    verb = "looks" if len(doubted) == 1 else "look"
    return [
        Finding(
            id="suspicious-labels",
            severity="info",
            quantities=("kernel",),
            sentence=f"{len(doubted)} of {len(doubts)} labels {verb} wrong: the kernel of all "
            f"other examples says another class (examples {named}).",
            value=float(doubts[doubted[0]]),
            threshold=DOUBTED,
            trust="On 600 digits of which up to a tenth had a wrong label, 97 % of those it named "
            "were wrong, and it named 82 % of these. Of a small probe it names odd ones, too.",
            do="Look at these examples of the probe first.",
            verify="Track again with their labels corrected: it names none of them.",
        )
    ]
