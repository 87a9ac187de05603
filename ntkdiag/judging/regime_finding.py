"""What the regime of a training, or its kernel beside the labels, is a finding of."""

from ntkdiag.judging.alignment_growth import GROWTH, Task
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.regime import LAZY_E1, NONLINEAR_E1, Regime


def regime_findings(
    regime: Regime, e1: float | None, *, first: str, step: int | None, trust: str
) -> list[Finding]:
    """A finding where the network linearized at the beginning explains the end, or does not.

    `first` names the checkpoint it is linearized at.
    """
    if e1 is None or regime not in ("lazy", "nonlinear"):
        return []
    said = f"The network linearized at {first}"
    if regime == "lazy":
        said += f" predicts the end, up to {e1:.2g} of the change of the outputs."
        threshold = LAZY_E1
        do = "Train the linearized model, too (ntkdiag.baselines.linear_baseline)."
        verify = "It does as well: its kernel is all there is to this training."
    else:
        said += f" does not predict the end: it is off by {e1:.2g} of the change."
        threshold = NONLINEAR_E1 if e1 >= NONLINEAR_E1 else LAZY_E1
        do = "Linearize at a later checkpoint."
        verify = "e1 from there is below 0.1."
    return [
        Finding(
            id="linear-regime" if regime == "lazy" else "nonlinear-regime",
            severity="info",
            quantities=("e1", "drift_distance_centred"),
            sentence=said,
            value=e1,
            threshold=threshold,
            step=step,
            trust=trust,
            do=do,
            verify=verify,
        )
    ]


def alignment_findings(task: Task, *, step: int | None, trust: str) -> list[Finding]:
    """A finding where the kernel became less that of the labels."""
    if task != "fell":
        return []
    return [
        Finding(
            id="alignment-fell",
            severity="warning",
            quantities=("alignment_above",),
            sentence="The kernel became less that of the labels: its odds above chance fell by a "
            f"factor of {GROWTH:g} or more.",
            threshold=GROWTH,
            step=step,
            trust=trust,
            do="Find between which checkpoints it fell (ntkdiag.track), and look at labels and "
            "learning rate there.",
            verify="The alignment of a later checkpoint is no lower than that of the first.",
        )
    ]
