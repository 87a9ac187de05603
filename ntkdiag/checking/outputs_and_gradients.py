"""Outputs and gradients of a model: are they there and finite, at every example?

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
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from ntkdiag.checking.result import Check, listed
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import leaves_by_path

MOST_IN_A_BLOCK = 16  # examples whose gradients are looked at together


def runs(outputs: PyTree, x: PyTree) -> Check:
    """Are there outputs, one row for every example, floating and finite?"""
    n = jax.tree.leaves(x)[0].shape[0]
    leaves = jax.tree.leaves(outputs)
    shapes = [f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for leaf in leaves]
    got = ", ".join(shapes) or "nothing"
    if not leaves or any(jnp.shape(leaf)[:1] != (n,) for leaf in leaves):
        text = f"{n} examples give {got}: the first axis has to be the examples; "
        text += "output= takes the part that has them"
        return Check("runs", "wrong", text)
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        return Check("runs", "wrong", f"outputs {got}: select the floating ones with output=")
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in leaves):
        return Check("runs", "wrong", f"outputs {got} hold NaN or infinity")
    return Check("runs", "ok", f"{n} examples give {got}, finite")


def statistics(functional: Functional) -> Check | None:
    """Are there running statistics in use that no batch has filled in? None where all is well."""
    if functional.mode not in ("eval", "dropout"):
        return None
    unfilled = []
    for path, leaf in functional.fixed.items():
        layer, _, name = path.rpartition("/")
        # Variances of zero are those of no batch. The flag that Equinox keeps next to them is not
        # reliable: it stays as it was when statistics are put into a State by hand.
        if name == "var" and not np.any(leaf):
            unfilled.append(layer)
    if not unfilled:
        return None
    text = (
        f"no batch has filled in the running statistics at {listed(sorted(set(unfilled)))}: pass "
        'those of training, or mode="train"'
    )
    return Check("statistics", "wrong", text)


def gradients(rows: Sequence[Mapping[str, np.ndarray]], params: PyTree) -> Check:
    """Which parameters have no gradient, or none that is finite, in any row of the Jacobian?"""
    # One entry for every parameter array; each row of the Jacobian has a part for it.
    paths = list(leaves_by_path(params))
    broken = []
    without = []
    for path in paths:
        name = path or "all"  # parameters that are a single array have an empty path
        if not all(np.isfinite(row[path]).all() for row in rows):
            broken.append(name)
        if not any(row[path].any() for row in rows):
            without.append(name)
    if broken:
        return Check("gradients", "wrong", f"NaN or infinity in the gradient of {listed(broken)}")
    if len(without) == len(paths):
        text = "no parameter has a gradient: the outputs do not depend on them"
        return Check("gradients", "wrong", text)
    if without:
        text = (
            f"no gradient of {listed(without)}: buffers, dead units, unused layers or factors of "
            "zero? Exclude them with trainable="
        )
        return Check("gradients", "note", text)
    return Check("gradients", "ok", f"every one of {len(paths)} parameter arrays has one")


def at_all_examples(gradients: Check, not_finite: str, x: PyTree) -> Check:
    """The answer about gradients of the first examples, with what all of them say."""
    if not_finite:
        return Check("gradients", "wrong", not_finite)
    if gradients.status == "wrong":
        return gradients
    n = jax.tree.leaves(x)[0].shape[0]
    return dataclasses.replace(gradients, text=f"{gradients.text}; finite at all {n} examples")


def not_finite_at(
    f: Callable[[PyTree, PyTree], PyTree], params: PyTree, x: PyTree, *, interact: bool
) -> str:
    """What is not finite, and at which examples, in words; empty where all of it is."""
    n = jax.tree.leaves(x)[0].shape[0]
    size = n if interact else min(n, MOST_IN_A_BLOCK)
    program = _program(f)

    def not_finite_in(block: Int[np.ndarray, " b"]) -> list[str]:
        outputs_are_finite, gradients_are_finite = program(params, x, block)
        if not outputs_are_finite:  # neither are their gradients
            return ["the outputs"]
        by_path = leaves_by_path(gradients_are_finite)
        paths = [path or "all" for path, is_finite in by_path.items() if not is_finite]
        return [f"the gradient of {listed(paths)}"] if paths else []

    broken: dict[int, list[str]] = {}  # example -> what is not finite there
    for first in range(0, n, size):
        block = np.minimum(np.arange(first, first + size), n - 1)
        if not not_finite_in(block):
            continue
        for example in np.unique(block):
            alone = not_finite_in(block if interact else np.full(size, example))
            if alone:
                broken[int(example)] = alone
    if not broken:
        return ""
    what = listed(list(dict.fromkeys(name for names in broken.values() for name in names)))
    if interact:
        return f"NaN or infinity in {what}"
    examples = "example" if len(broken) == 1 else "examples"
    return f"NaN or infinity in {what} at {examples} {listed(list(map(str, broken)), 4)} of {n}"


def _program(f: Callable[[PyTree, PyTree], PyTree]) -> Callable[..., tuple[Array, PyTree]]:
    """What is finite in a block, as one compiled program."""
    options = compiler_options(reduces=True, once=True)

    # Weights that are zero nowhere, and make an average of the gradients in a block.
    def direction(outputs: Array) -> Array:
        n, *of_one = outputs.shape
        weights = jnp.linspace(0.5, 1.5, int(np.prod(of_one, dtype=int))).reshape(of_one)
        return jnp.broadcast_to(weights / n, outputs.shape).astype(outputs.dtype)

    @functools.partial(jax.jit, compiler_options=options)
    def of_block(
        params: PyTree, x: PyTree, indices: Int[Array, " b"]
    ) -> tuple[Bool[Array, ""], PyTree]:
        block = jax.tree.map(lambda leaf: leaf[indices], x)
        outputs, pull_back = jax.vjp(lambda params: f(params, block), params)
        (gradient,) = pull_back(jax.tree.map(direction, outputs))
        are_finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(outputs)]
        of_gradient = jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), gradient)
        return jnp.stack(are_finite).all(), of_gradient

    return of_block
