"""Convolutions in the one layout that XLA runs fast everywhere on a CPU.

Outside of loops and branches XLA brings every convolution to channels-last by itself. Inside of them it does not, and
runs the others, among them most that JAX's derivatives ask for, 40 to 60 times slower.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from ntkdiag import _compat

# Primitives whose bodies are looked into.
_CONTROL_FLOW = frozenset(("scan", "while", "cond", "jit", "pjit", "checkpoint", "remat", "remat2"))


def channels_last(f: Callable) -> Callable:
    """The same function of arrays, derivatives taken inside of it included, with its convolutions channels-last.

    For what runs inside a loop, on a CPU; on other devices it is f.
    """

    def run(*args):
        if jax.default_backend() != "cpu":
            return f(*args)
        closed, out = jax.make_jaxpr(f, return_shape=True)(*args)
        return jax.tree.unflatten(
            jax.tree.structure(out), evaluate(*_compat.open_jaxpr(closed), *jax.tree.leaves(args))
        )

    return run


def evaluate(jaxpr: Any, consts: list, *values: Any) -> list:
    """Evaluate a jaxpr, on a CPU with all its convolutions channels-last."""
    if jax.default_backend() != "cpu" or not _has_some(jaxpr):
        return _compat.eval_jaxpr(jaxpr, consts, *values)
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *values], strict=True))
    read = lambda atom: atom.val if isinstance(atom, _compat.Literal) else known[atom]
    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name == "conv_general_dilated":
            out = [_convolution(*operands, **eqn.params)]
        else:
            looked_into = eqn.primitive.name in _CONTROL_FLOW and any(map(_has_some, _compat.sub_jaxprs(eqn)))
            out = _compat.bind(_compat.with_bodies(eqn, _body) if looked_into else eqn, operands)
        known.update(zip(eqn.outvars, out, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _has_some(jaxpr: Any) -> bool:
    return _compat.contains(jaxpr, "conv_general_dilated")


def _body(jaxpr: Any, consts: list) -> Any:
    """The body of a control-flow primitive that does the same, as a closed jaxpr."""
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in jaxpr.invars]
    return jax.make_jaxpr(lambda *values: evaluate(jaxpr, consts, *values))(*avals)


def _convolution(lhs: jax.Array, rhs: jax.Array, *, dimension_numbers: Any, **params: Any) -> jax.Array:
    """A convolution [n space c] * [space c c'] -> [n space c'], between transpositions."""
    batch_first = lambda spec: (spec[0], *spec[2:], spec[1])
    last = lhs.ndim - 1
    layout = (0, last, *range(1, last))
    kernel = (last, last - 1, *range(last - 1))
    rhs_spec, out_order = dimension_numbers.rhs_spec, batch_first(dimension_numbers.out_spec)
    out = lax.conv_general_dilated_p.bind(
        lhs.transpose(batch_first(dimension_numbers.lhs_spec)),
        rhs.transpose((*rhs_spec[2:], rhs_spec[1], rhs_spec[0])),
        dimension_numbers=lax.ConvDimensionNumbers(layout, kernel, layout),
        **params,
    )
    return out.transpose([out_order.index(axis) for axis in range(out.ndim)])
