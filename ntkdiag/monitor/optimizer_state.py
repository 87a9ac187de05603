"""What an Optax state tells: the learning rate, and whether the margin holds for the optimizer.

An Optax optimizer is two functions and does not say what it is, so its state is read instead:

1. A field that keeps a history of gradients for every parameter (`nu` of Adam, `sum_of_squares` of
   Adagrad): its updates are not proportional to the gradient, and the margin does not hold.
2. A kind of state that (momentum) SGD never has around it: the same, as nothing is known of it.
3. A momentum buffer (`trace`) where no momentum was stated, or the reverse: the margin would be
   that of another optimizer.

Parameters may have the same names as fields of states. Only names in named tuples count.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.optimizer.state_fields import AROUND
from ntkdiag.scalars import Number

# Where Optax keeps second moments, or the first moment of optimizers that take its sign; SGD has
# none of these fields.
_ADAPTIVE_FIELDS = ("mu", "nu", "sum_of_squares", "v", "v_row", "e_g")
# States of Optax that (momentum) SGD can have around it: they choose, count, mask, clip and
# accumulate gradients. One that sums updates is none.
_STATES_AROUND_SGD = (AROUND - {"ApplyEvery"}) | {
    "AddNoiseState",
    "MonitorState",
    "SnapshotState",
    "TraceState",
}


def learning_rate_in(opt_state: PyTree) -> float | None:
    """The learning rate that `optax.inject_hyperparams` keeps in the state.

    None when the state is None, when it holds no learning rate, or several different ones.
    """
    rates = set()
    for hyperparameter in _injected(opt_state, "learning_rate"):
        for rate in jax.tree.leaves(hyperparameter):
            rates.add(float(np.asarray(rate)))
    if len(rates) != 1:
        return None
    return rates.pop()


def injected_learning_rate(opt_state: PyTree) -> Float[Array, ""]:
    """The same of a state that may be traced; NaN where there is none, or several are."""
    rates = jax.tree.leaves(_injected(opt_state, "learning_rate"))
    if len(rates) != 1 or jnp.size(rates[0]) != 1:
        return jnp.asarray(jnp.nan, jnp.float32)
    return jnp.asarray(rates[0]).reshape(()).astype(jnp.float32)


def objection_to_margin(opt_state: PyTree, momentum: Number) -> str | None:
    """Why the stability margin of (momentum) gradient descent does not hold, as a sentence.

    `momentum` is the one the margin is computed with. None where nothing speaks against the margin,
    as nothing does where the state is None.
    """
    if opt_state is None:
        return None
    for field in _ADAPTIVE_FIELDS:
        if _fields(opt_state, field):
            return (
                "The optimizer scales each parameter by its gradient history: the margin would not "
                "hold and is NaN."
            )
    unknown_kinds = sorted(_kinds(opt_state) - _STATES_AROUND_SGD)
    if unknown_kinds:
        return (
            f"The optimizer keeps a {unknown_kinds[0]}, which SGD does not: the margin would not "
            "hold and is NaN."
        )
    has_momentum_buffer = bool(_fields(opt_state, "trace"))
    if has_momentum_buffer and momentum == 0:
        return (
            "The optimizer has momentum and none was stated (descent=): the margin would not hold "
            "and is NaN."
        )
    if momentum and not has_momentum_buffer:
        return (
            "A momentum was stated and the optimizer has none: the margin would not hold and is "
            "NaN."
        )
    return None


def _kinds(opt_state: PyTree) -> set[str]:
    """Class names of the Optax states in a state; those of other libraries are let through."""
    kinds: set[str] = set()

    def note_kind(node: object) -> bool:
        """Note the class of a state on the way down the tree."""
        is_named_tuple = hasattr(node, "_fields")
        if is_named_tuple and type(node).__module__.split(".")[0] == "optax":
            kinds.add(type(node).__name__)
        return False  # no node is a leaf: the walk goes on into it

    jax.tree.leaves(opt_state, is_leaf=note_kind)
    return kinds


def _fields(opt_state: PyTree, name: str) -> list[PyTree]:
    """The values of all fields of this name in the states, which are named tuples."""
    import optax

    def is_field(path: tuple, value: object) -> bool:
        """Whether a path ends in a field of a named tuple, not in a key of the parameters."""
        del value
        return isinstance(path[-1], optax.tree_utils.NamedTupleKey)

    return _values(opt_state, name, is_field)


def _injected(opt_state: PyTree, name: str) -> list[PyTree]:
    """The values under this name in the dictionaries that states keep in a field `hyperparams`."""
    if opt_state is None:
        return []
    import optax

    def is_hyperparameter(path: tuple, value: object) -> bool:
        """Whether a path ends in a key of the dictionary `hyperparams` of a state."""
        del value
        if len(path) < 2:
            return False
        holder = path[-2]
        return isinstance(holder, optax.tree_utils.NamedTupleKey) and holder.name == "hyperparams"

    return _values(opt_state, name, is_hyperparameter)


def _values(opt_state: PyTree, name: str, belongs: Callable[[tuple, object], bool]) -> list[PyTree]:
    """What stands under this name in a state, wherever its path says that it belongs."""
    import optax

    with_paths = optax.tree_utils.tree_get_all_with_path(opt_state, name, belongs)
    return [value for _, value in with_paths]
