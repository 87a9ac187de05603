"""Labels that the kernel contradicts: predicted from all other examples, they are another class.

Kernel regression on one-hot labels gives each class a number near 0 or 1. The doubt about the label
of an example that is left out is doubt_i = max_{c != y_i} f_c(x_i) - f_{y_i}(x_i), from -1, where
all others agree, to 1. The kernel of a trained network fits wrong labels, too: callers average the
doubts over checkpoints.
"""

import numpy as np
from jaxtyping import Float, Int

from ntkdiag import display
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.thresholds import LABEL_DOUBT, LABELS_PREDICTED

_MOST_NAMED = 10  # examples


def suspicious(doubts: Float[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
    """The examples with suspicious labels, the largest doubt first; none where the kernel fails."""
    if np.mean(doubts < 0.0) < LABELS_PREDICTED:
        return np.zeros(0, int)
    order = np.argsort(-doubts, kind="stable")
    return order[doubts[order] > LABEL_DOUBT]


def label_findings(doubts: Float[np.ndarray, " n"]) -> list[Finding]:
    """At most one finding, of suspicious labels."""
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
            sentence=f"{len(doubted)} of {len(doubts)} labels {verb} wrong: the kernel predicts "
            f"another class from all other examples (examples {named}).",
            value=float(doubts[doubted[0]]),
            threshold=LABEL_DOUBT,
            trust="On 600 digits of which up to a tenth had a wrong label, 97 % of the labels that "
            "it named were wrong, and it named 82 % of the wrong ones. In a small probe it also "
            "names unusual examples.",
            do="Look at these examples of the probe first.",
        )
    ]
