"""Matrix products of full precision.

On accelerators JAX rounds the factors of float32 products, to 10 bits on a GPU, unless it is told
otherwise. What is compared with something else, or is a small difference, is not to be that coarse.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_full_precision(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, whose products are of full precision where it is traced or called.

    What says its own precision, as a layer may, keeps that.
    """

    @functools.wraps(function)
    def in_full(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return in_full
