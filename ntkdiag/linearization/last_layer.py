"""Which parameters make up the last layer."""

from collections.abc import Callable
from typing import Any

import jax

from ntkdiag import _compat, errors
from ntkdiag.adapters import structure

_CONTRACTIONS = {"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general", "gather"}
_VIEWS = {"reshape", "transpose", "squeeze", "slice", "broadcast_in_dim", "convert_element_type", "copy"}
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call"}


def last_layer(f: Callable[..., Any], params: Any, x: Any, **kwargs: Any) -> list[str]:
    """Paths of the parameters from the last contraction on: usually the kernel and the bias of the output layer.

    Where nothing follows that contraction and no other use shares its parameters, the network is linear in them: its
    linearization is the network with frozen features.
    Cost: tracing f once.

    Args:
        f: `f(params, x, **kwargs)`, such as `f, params = functionalize(model)`.
        params: The parameters.
        x: A batch, or its shapes.
        **kwargs: Handed to f.

    Returns:
        Paths, for ``trainable=`` of `functionalize` and `linearized_model`.

    Raises:
        InvalidInputError: When no parameter enters a contraction.

    Example:
        >>> import jax.numpy as jnp
        >>> params = {"a": jnp.ones((2, 3)), "b": jnp.ones((3, 1)), "c": jnp.ones(1)}
        >>> last_layer(lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"] + p["c"], params, jnp.ones((1, 2)))
        ['b', 'c']
    """
    paths = list(structure.leaves_by_path(params))
    closed = jax.make_jaxpr(lambda p, x: f(p, x, **kwargs))(params, x)
    jaxpr, _ = _compat.open_jaxpr(closed)
    seen: list[tuple[bool, int]] = []
    _walk(jaxpr, [leaf if leaf < len(paths) else None for leaf in range(len(jaxpr.invars))], seen)
    starts = [position for position, (contracts, _) in enumerate(seen) if contracts]
    if not starts:
        raise errors.InvalidInputError(
            errors.message(
                "last_layer(f, params, x)",
                expected="a network with a matrix product or convolution by a parameter",
                got="none",
                do="Name the parameters yourself: trainable=[...].",
            )
        )
    used = {leaf for _, leaf in seen[starts[-1] :]}
    return [path for leaf, path in enumerate(paths) if leaf in used]


def _walk(jaxpr: Any, inputs: list[int | None], seen: list[tuple[bool, int]]) -> list[int | None]:
    """Follow views of leaves in program order; note each use of a leaf, and whether it is a contraction."""
    leaf_of = {var: leaf for var, leaf in zip(jaxpr.invars, inputs, strict=True) if leaf is not None}
    read = lambda atom: None if isinstance(atom, _compat.Literal) else leaf_of.get(atom)
    for eqn in jaxpr.eqns:
        leaves = [read(atom) for atom in eqn.invars]
        found = [leaf for leaf in leaves if leaf is not None]
        inner = _compat.sub_jaxprs(eqn)
        if not found:
            continue
        if eqn.primitive.name in _CALLS and len(inner) == 1 and len(inner[0].invars) == len(leaves):
            outputs = _walk(inner[0], leaves, seen)
            leaf_of.update((v, leaf) for v, leaf in zip(eqn.outvars, outputs, strict=True) if leaf is not None)
        elif eqn.primitive.name in _VIEWS:
            leaf_of[eqn.outvars[0]] = found[0]
        else:
            contracts = eqn.primitive.name in _CONTRACTIONS
            contracts |= any(_compat.contains(j, name) for j in inner for name in _CONTRACTIONS)
            seen.extend((contracts, leaf) for leaf in found)
    return [read(atom) for atom in jaxpr.outvars]
