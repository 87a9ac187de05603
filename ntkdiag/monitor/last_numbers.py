"""The last measurement, read from the state of an optimizer."""

import jax
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.monitor.measurement import plain_numbers
from ntkdiag.monitor.packed_numbers import unpacked
from ntkdiag.monitor.watch_state import PackedState, is_watch_state


@errors.public
def record(opt_state: PyTree) -> dict[str, float | int | list[float]]:
    """The numbers of the last measurement, read from the state of a watched optimizer.

        ntkdiag.record(opt_state)["learning_rate"]

    It waits for the step that made the state, and copies the numbers to the host.

    Args:
        opt_state: The state of an optimizer that is watched, or that has one inside; the first one
            is read.

    Returns:
        The numbers under the names that writers see, NaN before the first measurement; `step` is
        the step that they are of, -1 before the first, and `status` its status.

    Raises:
        InvalidInputError: No optimizer in it is watched.

    Cost: one transfer of a few kilobytes.
    """
    watched = jax.tree.leaves(opt_state, is_leaf=is_watch_state)
    states = [node for node in watched if is_watch_state(node)]
    if not states:
        raise errors.InvalidInputError(
            expected="the state of a watched optimizer",
            got=f"a {type(opt_state).__name__} without one",
            do="Wrap the optimizer, and make the state with it: ntkdiag.watch(optimizer).init(...)",
        )
    state = states[0]
    if isinstance(state, PackedState):
        step, status = state.counter("step"), state.counter("status")
        numbers = unpacked(state)
    else:
        step, status = state.ntk_step, state.ntk_status
        numbers = {key.removeprefix("ntk_"): number for key, number in state.ntk_numbers.items()}
    step, status, numbers = jax.device_get((step, status, numbers))
    return {"step": int(step), "status": int(status), **plain_numbers(numbers)}
