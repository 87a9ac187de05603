"""What an Optax state tells about the optimizer."""

from typing import Any

import jax
import numpy as np

from ntkdiag.scalars import Number

# Where Optax keeps second moments, or the first moment of optimizers that take its sign; SGD has none of these fields.
_ADAPTIVE_FIELDS = ("mu", "nu", "sum_of_squares", "v", "v_row", "e_g")
# States of Optax that (momentum) SGD can have around it: they choose, count, mask, clip and accumulate gradients.
_OF_SGD = frozenset(
    (
        "AddNoiseState",
        "ApplyIfFiniteState",
        "ConditionallyMaskState",
        "ConditionallyTransformState",
        "EmptyState",
        "InjectHyperparamsState",
        "InjectStatefulHyperparamsState",
        "MaskedNode",
        "MaskedState",
        "MonitorState",
        "MultiStepsState",
        "PartitionState",
        "ScaleByScheduleState",
        "SnapshotState",
        "TraceState",
        "WrappedScheduleState",
        "ZeroNansState",
    )
)


def learning_rate_in(opt_state: Any) -> float | None:
    """The learning rate `optax.inject_hyperparams` keeps in the state.

    Args:
        opt_state: Any Optax state, or None.

    Returns:
        The learning rate, or None when the state holds none, or several different ones.
    """
    found = _named(opt_state, "learning_rate", inside="hyperparams")
    rates = {float(np.asarray(rate)) for leaf in found for rate in jax.tree.leaves(leaf)}
    return rates.pop() if len(rates) == 1 else None


def objection_to_margin(opt_state: Any, momentum: Number) -> str | None:
    """Why the stability margin of (heavy-ball) gradient descent does not hold for this optimizer.

    Args:
        opt_state: Any Optax state, or None, which raises no objection.
        momentum: The momentum the margin is computed with.

    Returns:
        The reason as a sentence, or None.
    """
    if any(_named(opt_state, field) for field in _ADAPTIVE_FIELDS):
        return "The optimizer scales each parameter by its gradient history: the margin would not hold and is NaN."
    others = sorted(_kinds(opt_state) - _OF_SGD)
    if others:
        return f"The optimizer keeps a {others[0]}, which SGD does not: the margin would not hold and is NaN."
    traces = _named(opt_state, "trace")
    if momentum == 0 and traces:
        return "The optimizer has momentum and none was stated (descent=): the margin would not hold and is NaN."
    if momentum and opt_state is not None and not traces:
        return "A momentum was stated and the optimizer has none: the margin would not hold and is NaN."
    return None


def _kinds(opt_state: Any) -> set[str]:
    """Names of the kinds of Optax states in a state; those of others are unknown and let through."""
    kinds: set[str] = set()

    def note(node: Any) -> bool:
        if hasattr(node, "_fields") and type(node).__module__.split(".")[0] == "optax":
            kinds.add(type(node).__name__)
        return False

    jax.tree.leaves(opt_state, is_leaf=note)
    return kinds


def _named(opt_state: Any, name: str, inside: str | None = None) -> list[Any]:
    if opt_state is None:
        return []
    import optax

    field = optax.tree_utils.NamedTupleKey

    def of_a_state(path: Any, value: Any) -> bool:
        del value
        # Parameters may have the same names as fields, so a key of a dict of parameters does not count.
        owner = path[-1] if inside is None else path[-2] if len(path) > 1 else None
        return isinstance(owner, field) and (inside is None or owner.name == inside)

    return [
        value for _, value in optax.tree_utils.tree_get_all_with_path(opt_state, name, of_a_state)
    ]
