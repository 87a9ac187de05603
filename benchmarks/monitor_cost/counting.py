"""Floating-point operations of a program, with the body of every loop as often as it runs.

XLA counts the body of a loop once, and of the branches of a conditional the dearest one. So for a
program p with loops of bodies b that run t times,

    flops(p) = xla(p) + sum over loops (t flops(b) - xla(b)),

and a conditional has the flops of its dearest branch. What XLA counts is the program before it is
optimized: nothing is compiled, and a program of shapes takes seconds.

`products_in` is a second count, of convolutions and matrix products alone, from their shapes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun
from jaxtyping import PyTree


def program_of(f: Callable[..., PyTree], *args: PyTree) -> ClosedJaxpr:
    """The program of a function of shapes, traced."""
    return jax.make_jaxpr(f)(*args)


def flops_in(program: ClosedJaxpr, trips: float) -> float:
    """Operations by XLA's count.

    Args:
        program: A traced program.
        trips: How often the bodies of loops run whose number of rounds is no constant.
    """
    return _counted(program, trips).flops


class _Counted(NamedTuple):
    """Operations of a program: as XLA counts them, and with all rounds of its loops."""

    xla: float
    flops: float


def _counted(program: ClosedJaxpr, trips: float) -> _Counted:
    xla = _xla_flops(program)
    flops = xla
    for equation in _loops_and_conditionals(program.jaxpr):
        bodies = [_counted(body, trips) for body in _bodies(equation)]
        if equation.primitive.name == "cond":
            flops += max(body.flops for body in bodies) - max(body.xla for body in bodies)
        else:
            [body] = bodies
            flops += _rounds(equation, trips) * body.flops - body.xla
    return _Counted(xla, flops)


def products_in(program: ClosedJaxpr, trips: float) -> float:
    """Operations of convolutions and matrix products alone: 2 for a multiplication and addition."""
    return _products(program.jaxpr, trips)


def _products(jaxpr: Jaxpr, trips: float) -> float:
    flops = 0.0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        within = [_products(inner, trips) for inner in _inner(equation)]
        if name == "dot_general":
            flops += _of_dot(equation)
        elif name == "conv_general_dilated":
            flops += _of_convolution(equation)
        elif name == "cond":
            flops += max(within)
        else:
            flops += _rounds(equation, trips) * sum(within)
    return flops


def _of_dot(equation: JaxprEqn) -> float:
    ((contracted, _), _) = equation.params["dimension_numbers"]
    summed = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return 2.0 * summed * math.prod(equation.outvars[0].aval.shape)


def _of_convolution(equation: JaxprEqn) -> float:
    """Multiplications with numbers of the image: none with padding, or in the gaps of dilation."""
    params = equation.params
    lhs, rhs, out = params["dimension_numbers"]
    image, kernel = (variable.aval.shape for variable in equation.invars)
    result = equation.outvars[0].aval.shape
    pairs = 1
    for k, (low, _) in enumerate(params["padding"]):
        # Position in the dilated image of each number of the result, for each one of the kernel.
        starts = np.arange(result[out[2 + k]]) * params["window_strides"][k] - low
        offsets = np.arange(kernel[rhs[2 + k]]) * params["rhs_dilation"][k]
        places = starts[:, None] + offsets
        dilation = params["lhs_dilation"][k]
        last = (image[lhs[2 + k]] - 1) * dilation
        pairs *= int(((places >= 0) & (places <= last) & (places % dilation == 0)).sum())
    # The kernel's own inputs are those of one group; groups of the batch divide the batch.
    batch = image[lhs[0]] // params["batch_group_count"]
    return 2.0 * batch * kernel[rhs[1]] * kernel[rhs[0]] * pairs


def _rounds(equation: JaxprEqn, trips: float) -> float:
    """How often an equation runs what is in it."""
    name = equation.primitive.name
    if name == "scan":
        return equation.params["length"]
    return trips if name == "while" else 1.0


def _loops_and_conditionals(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Those in calls too, but not those in one another."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("scan", "while", "cond"):
            yield equation
        else:
            for inner in _inner(equation):
                yield from _loops_and_conditionals(inner)


def _bodies(equation: JaxprEqn) -> Sequence[ClosedJaxpr]:
    """What a loop repeats, or the branches of a conditional."""
    params = equation.params
    if equation.primitive.name == "cond":
        return params["branches"]
    return [params["jaxpr"] if equation.primitive.name == "scan" else params["body_jaxpr"]]


def _inner(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """Programs within an equation."""
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, ClosedJaxpr):
                yield part.jaxpr
            elif isinstance(part, Jaxpr):
                yield part


def _xla_flops(program: ClosedJaxpr) -> float:
    """XLA's count of a program as it is written."""
    arguments = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.in_avals]
    cost: Any = jax.jit(jaxpr_as_fun(program)).lower(*arguments).cost_analysis()
    return float(cost.get("flops", 0.0))
