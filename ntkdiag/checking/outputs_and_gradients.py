"""Outputs, dtypes and gradients of a model: are they there, finite, and precise enough?"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag.checking.findings import Check, listed
from ntkdiag.checking.subject import Subject
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import leaves_by_path

# A unit roundoff above this one is that of half precision, below that one that of float64.
HALF = 1e-4
DOUBLE = 1e-9


def runs(outputs: PyTree, x: PyTree) -> Check:
    """Are there outputs, one row for every example, floating and finite?"""
    n = jax.tree.leaves(x)[0].shape[0]
    leaves = jax.tree.leaves(outputs)
    shapes = [f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for leaf in leaves]
    got = ", ".join(shapes) or "nothing"
    if not leaves or any(jnp.shape(leaf)[:1] != (n,) for leaf in leaves):
        text = f"{n} examples give {got}: the first axis has to be the examples"
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
        # Variances of zero are those of no batch. The mark that Equinox keeps beside them says
        # nothing: who puts statistics into a State by hand leaves it as it was.
        if name == "var" and not np.any(leaf):
            unfilled.append(layer)
    if not unfilled:
        return None
    text = (
        f"no batch has filled in the running statistics at {listed(sorted(set(unfilled)))}: pass "
        'those of training, or mode="train" with statistics='
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
            f"none for {listed(without)}: buffers, dead units, layers that are not used, factors "
            "of zeros? trainable= leaves them out"
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


def dtypes(subject: Subject) -> Check:
    """Do parameters, inputs and outputs agree in precision, and what is between them?"""
    dtypes_of = {
        "parameters": _floating_dtypes(subject.params),
        "inputs": _floating_dtypes(subject.x),
        "outputs": _floating_dtypes(subject.outputs),
    }
    # For each of the three, its dtypes in words and the coarsest of them as a number.
    parts = []
    coarsest: dict[str, float] = {}
    for name, kinds in dtypes_of.items():
        parts.append(f"{name} {' and '.join(sorted(map(str, kinds))) or 'integer'}")
        if kinds:
            coarsest[name] = max(float(jnp.finfo(dtype).eps) for dtype in kinds)
    text = ", ".join(parts)
    if subject.roundoff > max(coarsest.values()):
        text += f", values between them with a unit roundoff of {subject.roundoff:.1g}"

    # Outputs that are coarser than double parameters: somebody meant float64 and does not get it.
    of_outputs = max(coarsest["outputs"], subject.roundoff)
    if coarsest["parameters"] < DOUBLE and of_outputs > coarsest["parameters"]:
        text += ": the model rounds to a coarser dtype than that of its parameters"
        return Check("dtypes", "note", text)
    if max(subject.roundoff, *coarsest.values()) > HALF:
        text += ": half precision gives kernels with a coarse noise floor"
        return Check("dtypes", "note", text)
    if len(set.union(*dtypes_of.values())) > 1:
        return Check("dtypes", "note", f"{text}: they differ")
    return Check("dtypes", "ok", text)


def _floating_dtypes(tree: PyTree) -> set[np.dtype]:
    """The floating dtypes that occur in a tree."""
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(tree)}
    return {dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)}
