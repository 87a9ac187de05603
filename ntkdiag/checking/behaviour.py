"""Is a model a function of its parameters and its own inputs, and of nothing else?

Three questions, each asked by changing something and looking at the outputs: does the same call
give the same outputs; does one example change those of another; does every input change any? What
counts as a change, and what as rounding, the engine says (`jaxtools/independence.py`).
"""

import dataclasses
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.checking.result import Check, listed
from ntkdiag.jaxtools import independence, jaxprs
from ntkdiag.jaxtools.independence import check_few_compiled, how_to_part, largest_difference
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import leaves_by_path


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model whose outputs are what they should be, on a few examples."""

    functional: Functional  # the model
    joint: bool  # whether examples are meant to interact
    f: Callable[[PyTree, PyTree], PyTree]  # `f(params, x)`, the model with these keyword arguments
    compiled: Callable[[PyTree, PyTree], PyTree]  # the same as a compiled function
    program: jaxprs.ClosedJaxpr  # the jaxpr of f at these examples
    x: PyTree  # the examples
    outputs: PyTree  # compiled(params, x)
    roundoff: float  # unit roundoff of f, the coarsest of the values on its way

    @property
    def params(self) -> PyTree:
        """The parameters of the model."""
        return self.functional.params

    @property
    def count(self) -> int:
        """How many examples there are."""
        return jax.tree.leaves(self.x)[0].shape[0]

    def first(self, count: int, *, interact: bool) -> "Subject":
        """The same model on the first examples; `interact` says whether others change them."""
        few = jax.tree.map(lambda leaf: leaf[:count], self.x)
        if interact:
            outputs = self.compiled(self.params, few)
        else:
            # At another number of examples it would have to be compiled again.
            outputs = jax.tree.map(lambda leaf: leaf[:count], self.outputs)
        return dataclasses.replace(self, x=few, outputs=outputs)

    def is_rounding(self, difference: float) -> bool:
        """Whether rounding explains how far some outputs are from what they should be."""

        # Where the outputs are small differences of large numbers, rounding moves them by more than
        # their size tells: it is measured, by moving the parameters a little.
        def outputs_at(params: PyTree) -> PyTree:
            return self.compiled(params, self.x)

        scale = independence.largest_entry(self.outputs)
        return independence.is_rounding(difference, scale, outputs_at, self.params, self.roundoff)


def deterministic(subject: Subject) -> Check:
    """Does the same call give the same outputs, also when Python runs through the model again?"""
    # 1. The compiled function again: callbacks may draw numbers, Python does not run.
    again = subject.compiled(subject.params, subject.x)
    change = largest_difference(subject.outputs, again)
    if change > 0:
        text = (
            f"two calls differ by {change:.2g}: something draws random numbers outside of JAX's "
            "keys"
        )
        return Check("deterministic", "wrong", text)

    # 2. Traced again: whatever Python draws, counts or reads goes into the new program.
    #    JAX caches traces by function, so only a new function is traced again.
    def traced_again(params: PyTree, x: PyTree) -> PyTree:
        return subject.f(params, x)

    program = jax.make_jaxpr(traced_again)(subject.params, subject.x)
    if not jaxprs.is_same_program(subject.program, program):
        # Other constants or names may still give the same numbers.
        again = jax.jit(traced_again)(subject.params, subject.x)
        change = largest_difference(subject.outputs, again)
        if not subject.is_rounding(change):
            text = (
                f"two calls differ by {change:.2g}: something draws random numbers outside of "
                "JAX's keys, or is read while tracing"
            )
            return Check("deterministic", "wrong", text)
    text = "traced and run twice, the model gives the same outputs"
    return Check("deterministic", "ok", text)


def interaction(subject: Subject) -> Check:
    """Do the outputs of an example depend on the others, and did the caller say so?"""
    if subject.count < 2:
        return Check("examples", "not checked", "there is one example only")
    # The check that the engine makes before it relies on independent examples.
    try:
        check_few_compiled(subject.compiled, subject.params, subject.x, subject.program)
        interact = False
    except errors.ExamplesInteractError:
        interact = True
    how = "one example changes the outputs of another"
    if subject.joint:
        if interact:
            return Check("examples", "ok", f'they interact, as examples="joint" states: {how}')
        text = (
            'independent: no example changes the outputs of another; examples="joint" is not needed'
        )
        return Check("examples", "note", text)
    if interact:
        do = how_to_part(subject.functional.mode, ', or pass examples="joint" if you mean it')
        text = f"they interact: {how}. {do}"
        return Check("examples", "wrong", text)
    text = "independent: no example changes the outputs of another"
    return Check("examples", "ok", text)


def inputs(subject: Subject) -> Check:
    """Does every array of x reach the outputs?"""
    outputs = subject.compiled(subject.params, subject.x)
    leaves = leaves_by_path(subject.x)
    structure = jax.tree.structure(subject.x)
    # Change one array at a time, in two ways: the outputs may miss one of them by symmetry.
    reaching: list[str] = []
    lost: list[str] = []
    untested: list[str] = []
    for path, leaf in leaves.items():
        changes = []
        for changed_leaf in _changed_values(leaf):
            x = jax.tree.unflatten(structure, {**leaves, path: changed_leaf}.values())
            changes.append(largest_difference(outputs, subject.compiled(subject.params, x)))
        if not changes:
            untested.append(path)
        elif max(changes) > 0:
            reaching.append(path)
        else:
            lost.append(path)

    if lost and not reaching:
        text = "the outputs do not depend on x: they are the same for other inputs"
        return Check("inputs", "wrong", text)
    if lost:
        text = f"{_quoted(lost)} does not reach the outputs; {_quoted(reaching)} does"
        return Check("inputs", "note", text)
    if untested:
        text = f"{_quoted(untested)} is the same for all examples and not floating"
        return Check("inputs", "not checked", text)
    if len(reaching) == 1:
        return Check("inputs", "ok", f"{_quoted(reaching)} reaches the outputs")
    return Check("inputs", "ok", "all reach them")


def _quoted(paths: Iterable[str]) -> str:
    """Paths of arrays in quotes; an x that is a single array has an empty path."""
    return listed([f'"{path}"' if path else "x" for path in paths])


def _changed_values(leaf: jax.Array) -> list[jax.Array]:
    """Values an input can have as well: those of the next example, shifted or inverted ones."""
    of_next_example, *changed = _next_and_shifted(leaf)
    if not np.array_equal(of_next_example, leaf):
        changed.append(of_next_example)
    return changed


@jax.jit
def _next_and_shifted(leaf: jax.Array) -> list[jax.Array]:
    """Those of the next example; and shifted or inverted ones, where the dtype allows it."""
    changed = [jnp.roll(leaf, 1, axis=0)]
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        shift = jnp.linspace(0.5, 1.0, leaf.size, dtype=leaf.dtype)
        changed.append(leaf + shift.reshape(leaf.shape))
    if leaf.dtype == bool:
        changed.append(~leaf)
    return changed
