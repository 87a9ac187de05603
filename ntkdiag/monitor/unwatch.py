"""From the state of a watched optimizer to that of the optimizer itself, and back.

A checkpoint of a run without `watch` holds no numbers, one of a watched run holds them round the
state of the optimizer:

    unwatch(opt_state)              the state as it would be without `watch`
    rewatch(watched, opt_state)     a state of `watch` with another state of the optimizer inside
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
    `watch` is `unwatch(tx.init(params))`.

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


@errors.public
def rewatch(watched: PyTree, opt_state: PyTree) -> PyTree:
    """Put a state of the optimizer, restored from a run without `watch`, under watch.

    Args:
        watched: The state of the watched optimizer, as `tx.init(params)` makes it.
        opt_state: A state without `watch`, with the structure of `unwatch(watched)`.

    Returns:
        `watched` with the values of `opt_state` inside. The count of `watch` begins where it was
        in `watched`.

    Raises:
        StructureError: When the structures differ.
    """
    expected = jax.tree.structure(unwatch(watched))
    got = jax.tree.structure(opt_state)
    if got != expected:
        raise errors.StructureError(
            expected=f"a state of the optimizer that is watched, {expected}",
            got=f"{got}",
            do="Make `watched` with the same optimizer: tx.init(params).",
        )
    leaves = iter(jax.tree.leaves(opt_state))

    # Both states list the leaves of the optimizer in the same order.
    def put_inside(node: PyTree) -> PyTree:
        if is_watch_state(node):
            return node._replace(ntk_inner=jax.tree.map(lambda _: next(leaves), node.ntk_inner))
        return next(leaves)

    return jax.tree.map(put_inside, watched, is_leaf=is_watch_state)
