"""What training on new examples is a finding of, for old ones."""

from collections.abc import Sequence

from ntkdiag.judging.finding import Finding


def interference_findings(
    change: float, interval: tuple[float, float], unit: str, hardest: Sequence[int], trust: str
) -> list[Finding]:
    """A finding where the whole interval says that the old examples are harmed."""
    if not interval[0] > 0.0:
        return []
    named = ", ".join(map(str, hardest))
    return [
        Finding(
            id="new-harms-old",
            severity="warning",
            quantities=("change", "lower"),
            sentence=f"Training on the new examples raises the mean loss on the old ones by "
            f"{change:.3g}{unit}, most on the examples {named}.",
            value=change,
            interval=interval,
            threshold=0.0,
            trust=trust,
            do="Mix old examples into the new ones, the hardest hit first, or lower the rate.",
            verify="Of the mixture the interval of the change holds 0, or is below it.",
        )
    ]
