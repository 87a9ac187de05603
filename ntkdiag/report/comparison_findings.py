"""What is found in a comparison: the state of B, its stability, the regime, the labels."""

import math

import numpy as np

from ntkdiag import display
from ntkdiag.judging.finding import Finding, by_urgency
from ntkdiag.judging.margin_finding import margin_findings
from ntkdiag.judging.regime_finding import alignment_findings, regime_findings
from ntkdiag.judging.state_finding import state_findings
from ntkdiag.report.reported import Comparison, Measured


def comparison_findings(comparison: Comparison) -> list[Finding]:
    """All findings, the most urgent first."""
    verdict, b = comparison.verdict, comparison.b
    trust = f"Of two checkpoints and {b.kernel.n_examples} examples."
    if verdict.state != "alive":
        return state_findings(verdict.state, b.condition.spread, verdict.numbers, b.step, trust)
    e1 = comparison.prediction.e1
    return by_urgency(
        [
            *_stability(comparison, trust),
            *regime_findings(
                verdict.regime, e1, first=comparison.a.label, step=b.step, trust=trust
            ),
            *alignment_findings(verdict.task, step=b.step, trust=trust),
            *_unreached(comparison, b.step, trust),
        ]
    )


def _stability(comparison: Comparison, trust: str) -> list[Finding]:
    """The margins of A and B."""
    known = [side for side in (comparison.a, comparison.b) if _is_known(side.margin)]
    if comparison.b not in known:
        return []
    ends = [side.margin_interval or (side.margin, side.margin) for side in known]
    lower, upper = np.asarray(ends, np.float64).T
    values = np.asarray([side.margin for side in known], np.float64)
    # An end that is not known is the value itself.
    lower, upper = (np.where(np.isfinite(end), end, values) for end in (lower, upper))
    steps = [side.step for side in known]
    return margin_findings(steps, values, lower, upper, trust)


def _unreached(comparison: Comparison, step: int | None, trust: str) -> list[Finding]:
    """Parameters that gradients reached at A, and no more at B."""
    at_a = _unreached_leaves(comparison.a)
    lost = [leaf for leaf in _unreached_leaves(comparison.b) if leaf not in at_a]
    if not lost:
        return []
    named = display.some_of(leaf or "(the only leaf)" for leaf in lost)
    return [
        Finding(
            id="parameters-lost",
            severity="warning",
            quantities=("leaf_shares",),
            sentence=f"No gradient reaches {named} at the end, and at first one did.",
            value=float(len(lost)),
            threshold=0.0,
            step=step,
            layer=lost[0],
            trust=trust,
            do="Look for units behind it that are off for all examples, or saturated.",
            verify="Its share of the kernel's trace is above 0.",
        )
    ]


def _unreached_leaves(side: Measured) -> list[str]:
    """Paths of the leaves whose kernel is zero: no gradient on the probe reaches them."""
    return [path for path, kernel in side.leaf_kernels.items() if not kernel.any()]


def _is_known(number: float | None) -> bool:
    return number is not None and math.isfinite(number)
