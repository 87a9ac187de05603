"""What a gradient noise scale is a finding of, beside the batch that is trained with."""

from ntkdiag.judging.finding import Finding

# A batch is far from the noise scale where they differ by this factor, at the near end of its
# interval: twice the batch takes less than 0.6, or more than 0.9, of the steps.
FAR = 4.0


def noise_findings(batch: int, lower: float, upper: float, step: int, trust: str) -> list[Finding]:
    """At most one finding: that the batch is far below the noise scale, or far above.

    Args:
        batch: Examples of a step of training.
        lower: Lower end of the interval of the noise scale.
        upper: Upper end; NaN or infinite where it has none.
        step: Where it was measured.
        trust: What it is of.
    """
    if lower > FAR * batch:
        return [
            Finding(
                id="batch-below-noise",
                severity="info",
                quantities=("noise_scale",),
                sentence=f"A batch of {batch} is far below the gradient noise scale, which is "
                f"{lower:.2g} examples or more.",
                value=lower,
                interval=(lower, upper),
                threshold=FAR * batch,
                step=step,
                trust=trust,
                do="Where steps are what costs, take larger batches: twice the batch takes little "
                "more than half of the steps.",
                verify="The loss falls as far in fewer steps.",
            )
        ]
    if upper < batch / FAR:
        return [
            Finding(
                id="batch-above-noise",
                severity="info",
                quantities=("noise_scale",),
                sentence=f"A batch of {batch} is far above the gradient noise scale, which is "
                f"{upper:.2g} examples or less.",
                value=upper,
                interval=(lower, upper),
                threshold=batch / FAR,
                step=step,
                trust=trust,
                do="Take smaller batches: half the batch takes hardly more steps.",
                verify="The loss falls as far on fewer examples.",
            )
        ]
    return []
