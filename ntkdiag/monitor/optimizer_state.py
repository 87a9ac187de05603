"""The learning rate that an Optax state tells."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


def injected_learning_rate(opt_state: PyTree) -> Float[Array, ""]:
    """The learning rate that `optax.inject_hyperparams` keeps in the state.

    NaN where there is none, or several are.
    """
    rates = jax.tree.leaves(_injected_rates(opt_state))
    if len(rates) != 1 or jnp.size(rates[0]) != 1:
        return jnp.asarray(jnp.nan, jnp.float32)
    return jnp.asarray(rates[0]).reshape(()).astype(jnp.float32)


def _injected_rates(opt_state: PyTree) -> list[PyTree]:
    """Learning rates in the dictionaries that states keep in a field `hyperparams`."""
    if opt_state is None:
        return []
    import optax

    def is_hyperparameter(path: tuple, value: object) -> bool:
        """Whether a path ends in a key of the dictionary `hyperparams` of a state."""
        del value
        if len(path) < 2:
            return False
        # Parameters may have the same names: only those in named tuples count.
        holder = path[-2]
        return isinstance(holder, optax.tree_utils.NamedTupleKey) and holder.name == "hyperparams"

    found = optax.tree_utils.tree_get_all_with_path(opt_state, "learning_rate", is_hyperparameter)
    return [rate for _, rate in found]
