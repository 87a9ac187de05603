"""What a network that is dead or has collapsed is a finding of."""

from ntkdiag.judging.finding import Finding
from ntkdiag.judging.network_state import State

_QUANTITIES = ("dead", "equal_outputs", "output_spread", "loss", "constant_loss")


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
            quantities=_QUANTITIES,
            sentence=sentence,
            value=spread,
            step=step,
            trust=trust,
            do="Go back to a checkpoint from before, and train on with a smaller learning rate.",
            verify="Track again: the last checkpoint tells examples apart.",
        )
    ]
