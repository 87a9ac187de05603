"""What the beginning and the end of a training say, of a comparison, a track or an interference."""

from collections.abc import Sequence
from typing import Any

from ntkdiag import display
from ntkdiag.judging.finding import Finding, by_urgency
from ntkdiag.judging.of_rows import margin_finding
from ntkdiag.judging.regime import Regime, State, Task
from ntkdiag.judging.thresholds import ALIGNMENT_GROWTH, LAZY_E1, NONLINEAR_E1


def comparison_findings(comparison: Any) -> list[Finding]:
    """All findings of a `ntkdiag.comparison.Comparison`, the most urgent first."""
    verdict, a, b = comparison.verdict, comparison.a, comparison.b
    trust = f"Of two checkpoints and {b.kernel.n_examples} examples."
    if verdict.state != "alive":
        return state_findings(verdict.state, b.condition.spread, verdict.numbers, b.step, trust)
    margin = margin_finding(
        [{**b.known_numbers, "step": b.step, "margin_status": b.margin_status}], 1
    )
    e1 = comparison.prediction.e1
    return by_urgency(
        [
            *([margin] if margin else []),
            *regime_findings(verdict.regime, e1, first=a.label, step=b.step, trust=trust),
            *alignment_findings(verdict.task, step=b.step, trust=trust),
            *_lost_parameters(a, b, trust),
        ]
    )


def state_findings(
    state: State, spread: float | None, sentence: str, step: int | None, trust: str
) -> list[Finding]:
    """A finding unless the network is alive."""
    if state == "alive":
        return []
    return [
        Finding(
            id=state,
            severity="error",
            quantities=("dead", "equal_outputs", "output_spread", "loss", "constant_loss"),
            sentence=sentence,
            value=spread,
            step=step,
            trust=trust,
            do="Go back to an earlier checkpoint, and train on with a smaller learning rate.",
        )
    ]


def regime_findings(
    regime: Regime, e1: float | None, *, first: str, step: int | None, trust: str
) -> list[Finding]:
    """A finding where the network linearized at the beginning explains the end, or does not.

    `first` names the checkpoint it is linearized at.
    """
    if e1 is None or regime not in ("lazy", "nonlinear"):
        return []
    is_lazy = regime == "lazy"
    error = f"its error is {e1:.2g} of the change of the outputs"
    is_far = e1 >= NONLINEAR_E1
    return [
        Finding(
            id="linear-regime" if is_lazy else "nonlinear-regime",
            severity="info",
            quantities=("e1", "drift_distance_centred"),
            sentence=f"The network linearized at {first} "
            f"{'predicts' if is_lazy else 'does not predict'} the end: {error}.",
            value=e1,
            threshold=NONLINEAR_E1 if is_far else LAZY_E1,
            step=step,
            trust=trust,
            do="Train the linearized model, too (ntkdiag.baselines.linear_baseline)."
            if is_lazy
            else "Linearize at a later checkpoint.",
        )
    ]


def alignment_findings(task: Task, *, step: int | None, trust: str) -> list[Finding]:
    """A finding where the kernel became less aligned with the labels."""
    if task != "fell":
        return []
    return [
        Finding(
            id="alignment-fell",
            severity="warning",
            quantities=("alignment_above",),
            sentence="The alignment of the kernel with the labels fell: its odds above chance are "
            f"lower by a factor of {ALIGNMENT_GROWTH:g} or more.",
            threshold=ALIGNMENT_GROWTH,
            step=step,
            trust=trust,
            do="Find the checkpoints between which it fell (ntkdiag.track), and check labels and "
            "learning rate there.",
        )
    ]


def interference_findings(
    change: float, interval: tuple[float, float], unit: str, hardest: Sequence[int], trust: str
) -> list[Finding]:
    """A finding where training on new examples harms old ones by the whole interval."""
    if not interval[0] > 0.0:
        return []
    return [
        Finding(
            id="new-harms-old",
            severity="warning",
            quantities=("change", "lower"),
            sentence=f"Training on the new examples raises the mean loss on the old ones by "
            f"{change:.3g}{unit}, most on the examples {', '.join(map(str, hardest))}.",
            value=change,
            interval=interval,
            threshold=0.0,
            trust=trust,
            do="Mix old examples into the new ones, the hardest hit first, or lower the rate.",
        )
    ]


def _lost_parameters(a: Any, b: Any, trust: str) -> list[Finding]:
    """Parameters that gradients on the probe reach at A, and not at B."""
    unreached_at_a, unreached = (
        [path for path, kernel in side.leaf_kernels.items() if not kernel.any()] for side in (a, b)
    )
    lost = [leaf for leaf in unreached if leaf not in unreached_at_a]
    if not lost:
        return []
    named = display.some_of(leaf or "(the only leaf)" for leaf in lost)
    return [
        Finding(
            id="parameters-lost",
            severity="warning",
            quantities=("leaf_shares",),
            sentence=f"No gradient reaches {named} at the end; at the beginning one did.",
            value=float(len(lost)),
            threshold=0.0,
            step=b.step,
            layer=lost[0],
            trust=trust,
            do="Look for units behind it that are off for all examples, or saturated.",
        )
    ]
