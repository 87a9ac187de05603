"""The kernel of two examples by plain `jax.vjp`, one row of the Jacobian after the other, beside that of the engine."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.adapters import leaves_by_path
from ntkdiag.checking.behaviour import difference, tolerance
from ntkdiag.checking.result import Finding
from ntkdiag.kernels import ntk

DIRECTIONS = 2


@dataclasses.dataclass(frozen=True)
class Rows:
    """Jacobian rows of every example along a few random output directions.

    Attributes:
        rows: For every example and direction, path -> gradient.
        directions: The output directions `[C k]`.
        how: How they were computed.
    """

    rows: list[dict[str, np.ndarray]]
    directions: np.ndarray
    how: str

    @property
    def kernel(self) -> np.ndarray:
        """Their inner products, in float64."""
        product = lambda a, b: float(np.vdot(a.astype(np.float64), b.astype(np.float64)))
        return np.array([[sum(product(a[path], b[path]) for path in a) for b in self.rows] for a in self.rows])

    def error(self, kernel: Any) -> float:
        """How far a kernel `[n k n k]` is from theirs, relative to the largest entry."""
        gap = np.abs(np.asarray(kernel, np.float64).reshape(self.kernel.shape) - self.kernel).max()
        return float(gap / max(np.abs(self.kernel).max(), 1e-300))


def wide_rows(f: Callable[..., Any], params: Any, x: Any, unit: float) -> Rows | None:
    """Rows in float64, where compilers and rounding do no harm.

    Args:
        f: `f(params, x)`.
        params: Its parameters.
        x: One or two examples.
        unit: Unit roundoff of the model as it is.

    Returns:
        The rows; None where the model is another one in float64: it fixes a dtype, or draws other random numbers.
    """
    y = jax.jit(f)(params, x)
    with jax.enable_x64(True):
        try:
            params, x = jax.tree.map(_as_float64, (params, x))
            again, pull = jax.jit(functools.partial(_linearized, f))(params, x)
            alike = difference(again, y) <= tolerance(y, unit)
            return _rows(again, jax.jit(_pulled), pull, "in float64") if alike else None
        except Exception:  # whatever it is that the model cannot do in float64, it need not
            return None


def plain_rows(f: Callable[..., Any], params: Any, x: Any) -> Rows:
    """Rows in the dtype of the model, operation by operation, so that no fusion of the compiler can go wrong."""
    y, pull = _linearized(f, params, x)
    return _rows(y, _pulled, pull, "not compiled")


def compared(f: Callable[..., Any], fn: Any, x: Any, rows: Rows, keywords: dict, joint: bool) -> Finding:
    """Is the engine's kernel the one of these rows?"""
    examples, dtype = "joint" if joint else "independent", jax.tree.leaves(fn.params)[0].dtype
    directions = jnp.asarray(rows.directions, dtype)
    kernel = ntk(fn.apply, fn.params, x, outputs=directions, examples=examples, **keywords)
    allowed = kernel.convention.coarsest(dtype) ** 0.5
    n, k = len(jax.tree.leaves(x)[0]), directions.shape[1]
    what = f"kernel of {n} {'example' if n == 1 else 'examples'}, {k} output {'direction' if k == 1 else 'directions'}"
    error = rows.error(kernel.array)
    text = f"{what}: relative error {error:.1g} to plain jax.vjp, {rows.how}"
    if error <= allowed:
        return Finding("engine", "ok", text)
    if rows.how == "in float64":  # is it rounding, or is it the engine?
        other = plain_rows(f, fn.params, x).error(kernel.array)
        if other <= allowed:
            return Finding("engine", "note", f"{text}: rounding, for in {dtype} it is {other:.1g}")
    return Finding("engine", "wrong", f"{text}, more than {allowed:.1g}: please report it")


def _linearized(f: Callable[..., Any], params: Any, x: Any) -> tuple[Any, Any]:
    return jax.vjp(lambda params: f(params, x), params)


def _pulled(pull: Any, cotangents: Any) -> Any:
    return pull(cotangents)[0]


def _rows(y: Any, pulled: Callable[..., Any], pull: Any, how: str) -> Rows:
    """Every row by itself, from the outputs and what pulls cotangents back."""
    leaves, treedef = jax.tree.flatten(y)
    sizes = [int(np.prod(leaf.shape[1:], dtype=int)) for leaf in leaves]
    directions = np.random.default_rng(0).normal(size=(sum(sizes), min(DIRECTIONS, sum(sizes))))
    directions = directions.astype(np.float16).astype(np.float64)  # the same numbers in every dtype
    parts = np.split(directions, np.cumsum(sizes)[:-1])
    rows = []
    for example in range(leaves[0].shape[0]):
        for k in range(directions.shape[1]):
            cotangents = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
            for cotangent, part in zip(cotangents, parts, strict=True):
                cotangent[example] = part[:, k].reshape(cotangent.shape[1:])
            gradient = pulled(pull, jax.tree.unflatten(treedef, list(map(jnp.asarray, cotangents))))
            rows.append({path: np.asarray(leaf) for path, leaf in leaves_by_path(gradient).items()})
    return Rows(rows, directions, how)


def _as_float64(leaf: Any) -> Any:
    return jnp.asarray(leaf, jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
