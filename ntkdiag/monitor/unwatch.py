"""From the state of a watched optimizer to that of the optimizer itself.

A checkpoint of a run without `watch` holds no numbers, one of a watched run holds them round the
state of the optimizer, which is `ntk_inner`.
"""

import jax
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.monitor.watch_state import is_watch_state


@errors.public
def unwatch(opt_state: PyTree) -> PyTree:
    """The state of the optimizer without `watch`, wherever in it that was.

    To restore a checkpoint of a watched run into one without, restore it with the state of the
    watched optimizer as the target, and unwatch it. A template for a checkpoint of a run without
    `watch` is `unwatch(tx.init(params))`; what is restored goes under watch by
    `tx.init(params)._replace(ntk_inner=restored)`.

    Args:
        opt_state: The state of an optimizer that is watched, or that has one inside.

    Returns:
        The same state with each `WatchState` replaced by what it holds; of a state without one, the
        state itself.

    Example:
        >>> import jax.numpy as jnp, optax, ntkdiag
        >>> x = jnp.ones((8, 2))
        >>> optimizer = optax.sgd(0.1)
        >>> tx = ntkdiag.watch(optimizer, lambda w, x: x @ w, train=(x, None))
        >>> w = jnp.ones((2, 1))
        >>> ntkdiag.unwatch(tx.init(w)) == optimizer.init(w)
        True
    """

    def inner(node: PyTree) -> PyTree:
        return unwatch(node.ntk_inner) if is_watch_state(node) else node

    return jax.tree.map(inner, opt_state, is_leaf=is_watch_state)
