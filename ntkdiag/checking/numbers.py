"""Outputs, gradients and dtypes of a model."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.adapters import leaves_by_path
from ntkdiag.checking.result import Finding

LISTED = 8


def listed(names: list[str]) -> str:
    """Write a list of names, and count those that are left out."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def runs(y: Any, x: Any) -> Finding:
    """Are there outputs, one row for every example, floating and finite?"""
    n = jax.tree.leaves(x)[0].shape[0]
    leaves = jax.tree.leaves(y)
    got = ", ".join(f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for leaf in leaves) or "nothing"
    if not leaves or not all(jnp.shape(leaf)[:1] == (n,) for leaf in leaves):
        return Finding("runs", "wrong", f"{n} examples give {got}: the first axis has to be the examples")
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        return Finding("runs", "wrong", f"outputs {got}: select the floating ones with output=")
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in leaves):
        return Finding("runs", "wrong", f"outputs {got} hold NaN or infinity")
    return Finding("runs", "ok", f"{n} examples give {got}, finite")


def gradients(rows: list[dict[str, np.ndarray]], params: Any) -> Finding:
    """Which parameters have no gradient, or none that is finite?"""
    paths = list(leaves_by_path(params))
    broken = [path or "all" for path in paths if not all(np.isfinite(row[path]).all() for row in rows)]
    dead = [path or "all" for path in paths if not any(row[path].any() for row in rows)]
    if broken:
        return Finding("gradients", "wrong", f"NaN or infinity in the gradient of {listed(broken)}")
    if len(dead) == len(paths):
        return Finding("gradients", "wrong", "no parameter has a gradient: the outputs do not depend on them")
    if dead:
        why = "buffers, dead units, layers that are not used, factors of zeros?"
        return Finding("gradients", "note", f"none for {listed(dead)}: {why} trainable= leaves them out")
    return Finding("gradients", "ok", f"every one of {len(paths)} parameter arrays has one")


def dtypes(params: Any, x: Any, y: Any, unit: float) -> Finding:
    """Do parameters, inputs and outputs agree in precision, and what is between them?"""
    floating = lambda tree: {leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)}
    of = {"parameters": floating(params), "inputs": floating(x), "outputs": floating(y)}
    text = ", ".join(f"{name} {' and '.join(sorted(map(str, found))) or 'integer'}" for name, found in of.items())
    coarsest = {name: max(float(jnp.finfo(dtype).eps) for dtype in found) for name, found in of.items() if found}
    if unit > max(coarsest.values()):
        text += f", values between them with a unit roundoff of {unit:.1g}"
    if max(coarsest["outputs"], unit) > coarsest["parameters"] and coarsest["parameters"] < 1e-9:
        return Finding("dtypes", "note", f"{text}: the model rounds to a coarser dtype than that of its parameters")
    if max(unit, *coarsest.values()) > 1e-4:
        return Finding("dtypes", "note", f"{text}: half precision gives kernels with a coarse noise floor")
    if len(set.union(*of.values())) > 1:
        return Finding("dtypes", "note", f"{text}: they differ")
    return Finding("dtypes", "ok", text)
