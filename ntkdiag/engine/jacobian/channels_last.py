"""Convolutions in the one layout that XLA runs fast everywhere on a CPU.

Outside of loops and branches XLA brings every convolution to channels-last by itself. Inside of
them it does not, and runs the others, among them most that JAX's derivatives ask for, 40 to 60
times slower. So a function is traced, derivatives included, and its jaxpr is evaluated with every
convolution put between transpositions to channels-last and back; the bodies of control flow are
rebuilt in the same way.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jaxtyping import Array, PyTree, Shaped

from ntkdiag import _jax
from ntkdiag._jax import Atom, ClosedJaxpr, Jaxpr

# Primitives whose bodies are rebuilt.
_CONTROL_FLOW = frozenset(("scan", "while", "cond", "jit", "pjit", "checkpoint", "remat", "remat2"))


def channels_last(f: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same function of arrays with its convolutions, also of derivatives, channels-last.

    For what runs inside a loop, on a CPU; on other devices it is f.
    """

    def run(*args: PyTree) -> PyTree:
        if jax.default_backend() != "cpu":
            return f(*args)
        closed, out = jax.make_jaxpr(f, return_shape=True)(*args)
        jaxpr, consts = _jax.open_jaxpr(closed)
        leaves = evaluate(jaxpr, consts, *jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(out), leaves)

    return run


def evaluate(jaxpr: Jaxpr, consts: list, *values: Any) -> list:
    """Evaluate a jaxpr, on a CPU with all its convolutions channels-last."""
    if jax.default_backend() != "cpu" or not _has_convolution(jaxpr):
        return _jax.eval_jaxpr(jaxpr, consts, *values)
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    known = dict(zip(inputs, [*consts, *values], strict=True))

    def read(atom: Atom) -> Any:
        return atom.val if isinstance(atom, _jax.Literal) else known[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name == "conv_general_dilated":
            outputs = [_convolution(*operands, **eqn.params)]
        else:
            # Bodies without a convolution are left as they are.
            has_body = eqn.primitive.name in _CONTROL_FLOW
            if has_body and any(map(_has_convolution, _jax.sub_jaxprs(eqn))):
                eqn = _jax.with_bodies(eqn, _rebuilt_body)
            outputs = _jax.bind(eqn, operands)
        known.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _has_convolution(jaxpr: Jaxpr) -> bool:
    """Whether there is a convolution in a jaxpr, or in one nested in it."""
    return _jax.contains(jaxpr, "conv_general_dilated")


def _rebuilt_body(jaxpr: Jaxpr, consts: list) -> ClosedJaxpr:
    """The body of a control-flow primitive, rebuilt with its convolutions channels-last."""
    avals = []
    for var in jaxpr.invars:
        aval = var.aval
        avals.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type))
    return jax.make_jaxpr(lambda *values: evaluate(jaxpr, consts, *values))(*avals)


def _convolution(
    lhs: Shaped[Array, "..."],
    rhs: Shaped[Array, "..."],
    *,
    dimension_numbers: lax.ConvDimensionNumbers,
    **params: Any,
) -> Shaped[Array, "..."]:
    """A convolution [n space... c] * [space... c d] -> [n space... d] between transpositions."""
    # JAX gives the axes of images as (n, c, space...), those of kernels as (d, c, space...).
    images = lhs.transpose(_channels_to_the_end(dimension_numbers.lhs_spec))  # -> [n space... c]
    d, c, *space = dimension_numbers.rhs_spec
    kernel = rhs.transpose((*space, c, d))  # -> [space... c d]

    # Where these axes are now: the last of images [n space... c], the last two of kernels.
    last = lhs.ndim - 1
    image_spec = (0, last, *range(1, last))
    kernel_spec = (last, last - 1, *range(last - 1))
    out = lax.conv_general_dilated_p.bind(
        images,
        kernel,
        dimension_numbers=lax.ConvDimensionNumbers(image_spec, kernel_spec, image_spec),
        **params,
    )
    # [n space... c] -> the order that was asked for
    out_order = _channels_to_the_end(dimension_numbers.out_spec)
    return out.transpose([out_order.index(axis) for axis in range(out.ndim)])


def _channels_to_the_end(spec: Sequence[int]) -> tuple[int, ...]:
    """The axes of an array, given as (batch, channels, space...), in the order [n space... c]."""
    n, c, *space = spec
    return (n, *space, c)
