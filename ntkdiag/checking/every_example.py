"""Are outputs and gradients finite at every example, and not at the first few alone?

A padded row, a token that never occurs or a division behind `where` has finite outputs and a
gradient of NaN, at that one example.

1. All examples are looked at in blocks of one size, for which one program is compiled: the outputs,
   and their gradient in one direction, averaged over the block. NaN of one example makes the
   average NaN. A last block that is not full is filled up with its last example.
2. In a block that is not finite each example is looked at by itself, repeated as often as a block
   is long: next to an infinite derivative a cotangent of 0 is NaN, too.

Where examples interact all of them are one block.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from ntkdiag.checking.findings import listed
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.models.paths import leaves_by_path

MOST_IN_A_BLOCK = 16
_MOST_NAMED = 4  # of more examples their number is told


@dataclasses.dataclass(frozen=True)
class _Finite:
    """What is finite in a block."""

    outputs: bool  # whether all outputs are
    gradients: dict[str, bool]  # path of a parameter -> whether its gradient is

    @property
    def everywhere(self) -> bool:
        """Whether all of it is."""
        return self.outputs and all(self.gradients.values())


def not_finite_at(
    f: Callable[[PyTree, PyTree], PyTree], params: PyTree, x: PyTree, *, interact: bool
) -> str:
    """What is not finite, and at which examples, in words; empty where all of it is."""
    n = jax.tree.leaves(x)[0].shape[0]
    size = n if interact else min(n, MOST_IN_A_BLOCK)
    look = functools.partial(_look, _program(f), params, x)
    # Example -> what is not finite there.
    broken: dict[int, list[str]] = {}
    for block in _blocks(n, size):
        if look(block).everywhere:
            continue
        for example in sorted(set(block.tolist())):
            alone = look(block if interact else np.full(size, example))
            if not alone.everywhere:
                broken[example] = _named(alone)
    if not broken:
        return ""
    what = listed(list(dict.fromkeys(name for names in broken.values() for name in names)))
    where = "" if interact else f" at {_places(list(broken))} of {n}"
    return f"NaN or infinity in {what}{where}"


def _blocks(n: int, size: int) -> Iterator[Int[np.ndarray, " b"]]:
    """Positions of examples, block by block; those of the last one repeat its last example."""
    for first in range(0, n, size):
        yield np.minimum(np.arange(first, first + size), n - 1)


def _program(f: Callable[[PyTree, PyTree], PyTree]) -> Callable[..., tuple[Array, PyTree]]:
    """What is finite in a block, as one compiled program."""
    options = compiler_options(reduces=True, once=True)

    @functools.partial(jax.jit, compiler_options=options)
    def of_block(
        params: PyTree, x: PyTree, places: Int[Array, " b"]
    ) -> tuple[Bool[Array, ""], PyTree]:
        block = jax.tree.map(lambda leaf: leaf[places], x)
        outputs, pull_back = jax.vjp(lambda params: f(params, block), params)
        (gradient,) = pull_back(jax.tree.map(_direction, outputs))
        are_finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(outputs)]
        of_gradient = jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), gradient)
        return jnp.stack(are_finite).all(), of_gradient

    return of_block


def _direction(outputs: Array) -> Array:
    """Weights that are zero nowhere, and make an average of the gradients in a block."""
    n, *of_one = outputs.shape
    weights = jnp.linspace(0.5, 1.5, int(np.prod(of_one, dtype=int))).reshape(of_one)
    return jnp.broadcast_to(weights / n, outputs.shape).astype(outputs.dtype)


def _look(
    program: Callable[..., tuple[Array, PyTree]],
    params: PyTree,
    x: PyTree,
    block: Int[np.ndarray, " b"],
) -> _Finite:
    """What is finite at these examples."""
    outputs, gradients = program(params, x, block)
    return _Finite(
        bool(outputs), {path: bool(finite) for path, finite in leaves_by_path(gradients).items()}
    )


def _named(finite: _Finite) -> list[str]:
    """What is not finite, in words; where the outputs are not, neither are their gradients."""
    if not finite.outputs:
        return ["the outputs"]
    paths = [path or "all" for path, is_finite in finite.gradients.items() if not is_finite]
    return [f"the gradient of {listed(paths)}"]


def _places(examples: Sequence[int]) -> str:
    """Positions of examples in words; of many, how many there are."""
    if len(examples) == 1:
        return f"example {examples[0]}"
    text = ", ".join(map(str, examples[:_MOST_NAMED]))
    if len(examples) > _MOST_NAMED:
        text += f" and {len(examples) - _MOST_NAMED} more"
    return f"examples {text}"
