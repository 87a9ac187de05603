"""Matrix products of full precision, and how coarsely a program rounds.

The unit roundoff of a function is the largest one of all values on the way from its inputs to its
outputs: a network with float32 parameters and float32 outputs may compute in bfloat16 in between.

On accelerators JAX rounds the factors of float32 products, to 10 bits on a GPU, unless it is told
otherwise. Comparisons and small differences need full precision.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import ClosedJaxpr, Equation, Jaxpr, downstream, liveness

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_full_precision(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, whose products are of full precision where it is traced or called."""

    @functools.wraps(function)
    def in_full(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return in_full


def at_least_float32(dtype: jax.typing.DTypeLike) -> np.dtype:
    """float32, or the dtype itself if it is wider."""
    # Whatever promotion the session allows its own arrays: under "strict" there would be none.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, jnp.float32)


def unit_roundoff(jaxpr: Jaxpr | ClosedJaxpr) -> float:
    """The largest unit roundoff of values between the inputs and outputs of a jaxpr, at least 0."""
    jaxpr, _ = jaxprs.open_jaxpr(jaxpr)
    differentiated = liveness(jaxpr).differentiated
    dependent = downstream(jaxpr, jaxpr.invars)
    roundoffs = [0.0]
    for k, eqn in enumerate(jaxpr.eqns):
        # What no input goes into is a constant, and what has no derivative rounds on purpose.
        on_the_way = differentiated[k] and not dependent.isdisjoint(eqn.outvars)
        if on_the_way:
            roundoffs += [eps_of(var.aval.dtype) for var in eqn.outvars]
            roundoffs.append(eps_of_factors(eqn))
            roundoffs += [unit_roundoff(nested) for nested in jaxprs.sub_jaxprs(eqn)]
    return max(roundoffs)


def eps_of(dtype: jax.typing.DTypeLike) -> float:
    """The unit roundoff of a dtype, also of one that numpy does not know; 0 if not floating."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return 0.0
    return float(jnp.finfo(dtype).eps)


def roundoff_of(f: Callable[..., PyTree], *arguments: PyTree) -> float:
    """The largest unit roundoff of a function in full precision: of its outputs, and on the way."""
    return roundoff_of_program(jax.make_jaxpr(in_full_precision(f))(*arguments))


def roundoff_of_program(program: jaxprs.ClosedJaxpr) -> float:
    """The largest unit roundoff of a jaxpr: of its outputs, and of the values on the way."""
    of_outputs = [eps_of(aval.dtype) for aval in program.out_avals]
    return max(unit_roundoff(program), *of_outputs)


# Unless they are told otherwise, accelerators round the factors of float32 products: a GPU to TF32
# with 10 bits, a TPU to bfloat16.
_EPS_OF_FACTORS = {"gpu": 2.0**-10, "tpu": 2.0**-7}
_FULL_PRECISION = (jax.lax.Precision.HIGHEST, jax.lax.DotAlgorithmPreset.F32_F32_F32)


def eps_of_factors(eqn: Equation) -> float:
    """How coarsely the factors of a float32 product are rounded here; 0 where they are not."""
    if eqn.primitive.name not in ("dot_general", "conv_general_dilated"):
        return 0.0
    asked = eqn.params["precision"]
    asked = asked if isinstance(asked, tuple) else (asked,)
    is_full = all(precision in _FULL_PRECISION for precision in asked)
    if is_full or eqn.outvars[0].aval.dtype != np.float32:
        return 0.0
    return _EPS_OF_FACTORS.get(jax.default_backend(), 0.0)
