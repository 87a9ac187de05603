"""What both pages advise where the learning rate is too high for the probe, perhaps only there."""

from ntkdiag.report.number_text import number


def watch_the_loss(lower: float) -> str:
    """Of a margin beyond 1 whose interval for the whole training set reaches down to `lower`."""
    return (
        "Watch the loss before you lower the learning rate: the margin of the probe is beyond 1, "
        f"and that of the training set may be {number(lower, 2)}."
    )
