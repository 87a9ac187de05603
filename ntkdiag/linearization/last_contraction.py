"""Which parameters make up the last layer.

The program of f is walked equation by equation. A parameter is followed through its views (reshape,
transpose, casts, ...) to the equations that use it. The last of these uses that is a contraction (a
matrix product, a convolution, an embedding look-up) begins the last layer: its parameters are those
of that use and of all later ones.

    tanh(x @ a) @ b.T + c      uses in order: a (contraction), b (contraction, seen through .T), c
                               the last layer: b, c
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.arrays import as_examples
from ntkdiag.call_f import outputs_of
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import Atom, Jaxpr
from ntkdiag.models import paths

# Primitives that multiply an activation by a weight, or look one up.
CONTRACTIONS = [
    "dot_general",
    "conv_general_dilated",
    "ragged_dot",
    "ragged_dot_general",
    "gather",
]
# What a parameter is only shown through.
VIEWS = [
    "reshape",
    "transpose",
    "squeeze",
    "slice",
    "broadcast_in_dim",
    "convert_element_type",
    "copy",
]
# What runs one body with its own inputs, in their order.
CALLS = [
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
]


class _Use(NamedTuple):
    """An equation that uses a parameter."""

    leaf: int  # number of the parameter among the leaves
    is_contraction: bool  # whether the equation is, or has inside, a contraction


@errors.public
def last_layer(f: Callable[..., PyTree], params: PyTree, x: PyTree, **kwargs: Any) -> list[str]:
    """Paths of the parameters from the last contraction on: usually those of the output layer.

    Where nothing follows that contraction and no other use shares its parameters, the network is
    linear in them: its linearization is the network with frozen features.

    Cost: tracing f once.

    Args:
        f: `f(params, x, **kwargs)`, such as `f, params = functionalize(model)`.
        params: The parameters.
        x: A batch, or its shapes.
        **kwargs: Passed to f.

    Returns:
        Paths, for ``trainable=`` of `functionalize` and `linearized_model`.

    Raises:
        InvalidInputError: When no parameter enters a contraction.

    Example:
        >>> import jax.numpy as jnp
        >>> params = {"a": jnp.ones((2, 3)), "b": jnp.ones((3, 1)), "c": jnp.ones(1)}
        >>> f = lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"] + p["c"]
        >>> last_layer(f, params, jnp.ones((1, 2)))
        ['b', 'c']
    """
    leaf_paths = list(paths.leaves_by_path(params))
    closed = jax.make_jaxpr(lambda p, x: outputs_of(f, p, x, kwargs))(params, as_examples(x))
    jaxpr, _ = jaxprs.open_jaxpr(closed)
    # The inputs are the leaves of the parameters, then those of x.
    n_leaves = len(leaf_paths)
    n_others = len(jaxpr.invars) - n_leaves
    uses: list[_Use] = []
    _walk(jaxpr, [*range(n_leaves), *[None] * n_others], uses)

    contractions = [position for position, use in enumerate(uses) if use.is_contraction]
    if not contractions:
        raise errors.InvalidInputError(
            expected="a network with a matrix product or convolution by a parameter",
            got="none",
            do="Name the parameters yourself: trainable=[...].",
        )
    # From the last contraction on: its own parameter, the bias that is added after it, ...
    last_leaves = {use.leaf for use in uses[contractions[-1] :]}
    return [path for leaf, path in enumerate(leaf_paths) if leaf in last_leaves]


def _walk(jaxpr: Jaxpr, leaves: list[int | None], uses: list[_Use]) -> list[int | None]:
    """Note the uses of parameters; which inputs (`leaves`) and outputs are views of which leaf."""
    # Variables that are, or are a view of, a leaf.
    leaf_of = dict(zip(jaxpr.invars, leaves, strict=True))

    def read(atom: Atom) -> int | None:
        # A constant in the program is no parameter.
        if isinstance(atom, jaxprs.Literal):
            return None
        return leaf_of.get(atom)

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        used = [leaf for leaf in operands if leaf is not None]
        if not used:
            continue
        bodies = jaxprs.sub_jaxprs(eqn)
        # A call is walked into, a view is followed, and all else is a use.
        is_call = eqn.primitive.name in CALLS and len(bodies) == 1
        if is_call and len(bodies[0].invars) == len(operands):
            leaf_of.update(zip(eqn.outvars, _walk(bodies[0], operands, uses), strict=True))
        elif eqn.primitive.name in VIEWS:
            leaf_of[eqn.outvars[0]] = used[0]
        else:
            # The body of a loop or branch may have one, too.
            is_contraction = eqn.primitive.name in CONTRACTIONS or any(
                jaxprs.contains(body, name) for body in bodies for name in CONTRACTIONS
            )
            uses.extend(_Use(leaf, is_contraction) for leaf in used)
    return [read(atom) for atom in jaxpr.outvars]
