"""The states of the optimizers that are next to the parameters of sides."""

from collections.abc import Sequence

from ntkdiag import errors
from ntkdiag.comparison.load import Side
from ntkdiag.optimizer.saved_state import Optimizer, OptimizerState, restored_state


def state_of(side: Side, optimizer: Optimizer) -> OptimizerState | None:
    """The optimizer's state of one side; None where it has none."""
    params = side.functional.params
    return restored_state(optimizer, params, side.optimizer_state, side.label)


def require_some_state(sides: Sequence[Side], states: Sequence[OptimizerState | None]) -> None:
    """Refuse sides none of which has an optimizer's state, where one was asked for."""
    if any(state is not None for state in states):
        return
    held = [f"{side.label}: {side.top_level or 'parameters'}" for side in sides]
    raise errors.InvalidInputError(
        argument="optimizer=...",
        expected="the state of the optimizer beside the parameters, as opt_state, optimizer, "
        "optimizer_state or optim, or a pair (parameters, state)",
        got="; ".join(dict.fromkeys(held)),
        do="Pass descent=ntkdiag.Descent(...), which states the update rule, or checkpoints with "
        "the state.",
    )
