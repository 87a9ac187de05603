"""What a gradient noise scale is a finding of, beside the batch that is trained with."""

from ntkdiag.judging.finding import Finding

# A batch is far from the noise scale where they differ by this factor, at the near end of its
# interval: twice the batch takes less than 0.6, or more than 0.9, of the steps.
FAR = 4.0


def noise_findings(batch: int, lower: float, upper: float, step: int, trust: str) -> list[Finding]:
    """At most one finding: that the batch is far below the noise scale, or far above."""
    said = f"A batch of {batch} is far"
    if lower > FAR * batch:
        name, end, threshold = "batch-below-noise", lower, FAR * batch
        said += f" below the gradient noise scale, which is {end:.2g} examples or more."
        do = (
            "Where steps are what costs, take larger batches: twice the batch takes little more "
            "than half of the steps."
        )
        verify = "The loss falls as far in fewer steps."
    elif upper < batch / FAR:
        name, end, threshold = "batch-above-noise", upper, batch / FAR
        said += f" above the gradient noise scale, which is {end:.2g} examples or less."
        do = "Take smaller batches: half the batch takes hardly more steps."
        verify = "The loss falls as far on fewer examples."
    else:
        return []
    return [
        Finding(
            id=name,
            severity="info",
            quantities=("noise_scale",),
            sentence=said,
            value=end,
            interval=(lower, upper),
            threshold=threshold,
            step=step,
            trust=trust,
            do=do,
            verify=verify,
        )
    ]
