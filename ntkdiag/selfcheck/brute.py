"""The kernel of two examples by plain `jax.vjp`, run operation by operation, beside that of the engine."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.adapters import leaves_by_path
from ntkdiag.kernels import ntk
from ntkdiag.selfcheck.result import Finding

DIRECTIONS = 2


def rows(f: Callable[..., Any], params: Any, x: Any) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
    """Jacobian rows of every example along a few random output directions.

    Args:
        f: `f(params, x)`; it is not compiled, so that no fusion of the compiler can go wrong.
        params: Its parameters.
        x: One or two examples.

    Returns:
        For every example and direction, path -> gradient; and the directions [C k].
    """
    y, pull = jax.vjp(lambda params: f(params, x), params)
    leaves, treedef = jax.tree.flatten(y)
    n, sizes = leaves[0].shape[0], [int(np.prod(leaf.shape[1:], dtype=int)) for leaf in leaves]
    directions = np.random.default_rng(0).normal(size=(sum(sizes), min(DIRECTIONS, sum(sizes))))
    parts = np.split(directions, np.cumsum(sizes)[:-1])
    found = []
    for example in range(n):
        for k in range(directions.shape[1]):
            cotangents = [
                jnp.zeros(leaf.shape, leaf.dtype)
                .at[example]
                .set(jnp.asarray(part[:, k], leaf.dtype).reshape(leaf.shape[1:]))
                for leaf, part in zip(leaves, parts, strict=True)
            ]
            gradient = pull(jax.tree.unflatten(treedef, cotangents))[0]
            found.append({path: np.asarray(leaf) for path, leaf in leaves_by_path(gradient).items()})
    return found, directions


def compared(
    fn: Any, x: Any, found: list[dict[str, np.ndarray]], directions: np.ndarray, kw: dict, joint: bool
) -> Finding:
    """Is the engine's kernel the one of these rows?"""
    product = lambda a, b: float(np.vdot(a.astype(np.float64), b.astype(np.float64)))
    expected = np.array([[sum(product(a[path], b[path]) for path in a) for b in found] for a in found])
    examples = "joint" if joint else "independent"
    dtype = jax.tree.leaves(fn.params)[0].dtype
    kernel = ntk(fn.apply, fn.params, x, outputs=jnp.asarray(directions, dtype), examples=examples, **kw)
    got = np.asarray(kernel.array, np.float64).reshape(expected.shape)
    error = float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-300))
    allowed = float(kernel.convention.unit_roundoff or jnp.finfo(dtype).eps) ** 0.5
    n, k = len(jax.tree.leaves(x)[0]), directions.shape[1]
    text = f"kernel of {n} {'example' if n == 1 else 'examples'}, {k} output directions: relative error {error:.1g}"
    if error <= allowed:
        return Finding("engine", "ok", f"{text} to plain jax.vjp")
    return Finding("engine", "wrong", f"{text} to plain jax.vjp, more than {allowed:.1g}: please report it")
