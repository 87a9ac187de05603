"""The kernel of two examples by plain `jax.vjp`, beside that of the engine.

The Jacobian is computed one row after the other: one example, one random direction v of the
outputs, J^T v by one call of the transpose. Inner products of the rows are the kernel in these
directions. Every program is compiled at the lowest optimization level, because compiling takes most
of the time of a self-check.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float64, PyTree

from ntkdiag.checking.behaviour import Subject
from ntkdiag.checking.result import Check
from ntkdiag.engine import ntk
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.models.paths import leaves_by_path

DIRECTIONS = 2


@dataclasses.dataclass(frozen=True)
class JacobianRows:
    """Jacobian rows of every example along a few random output directions."""

    rows: list[dict[str, np.ndarray]]  # for every example and direction, path -> gradient
    directions: Float64[np.ndarray, "c k"]  # the output directions

    @property
    def kernel(self) -> Float64[np.ndarray, "nk nk"]:
        """Inner products of the rows: the kernel in these directions."""
        kernel = np.empty((len(self.rows), len(self.rows)))
        for i, a in enumerate(self.rows):
            for j, b in enumerate(self.rows):
                kernel[i, j] = sum(np.vdot(a[path], b[path].astype(np.float64)) for path in a)
        return kernel

    def error(self, kernel: ArrayLike) -> float:
        """How far a kernel [n k n k] is from that of the rows, relative to its largest entry."""
        plain_kernel = self.kernel
        matrix = np.asarray(kernel, np.float64).reshape(plain_kernel.shape)  # -> [(n k) (n k)]
        gap = np.abs(matrix - plain_kernel).max()
        largest = np.abs(plain_kernel).max()
        return float(gap / max(largest, 1e-300))  # a zero kernel is not divided by


def compare_with_engine(subject: Subject, rows: JacobianRows) -> Check:
    """Is the engine's kernel the one of these rows?"""
    dtype = jax.tree.leaves(subject.params)[0].dtype
    directions = jnp.asarray(rows.directions, dtype)

    def projected(params: PyTree, x: PyTree) -> Array:
        """The outputs in these directions: [n k]."""
        leaves = jax.tree.leaves(subject.f(params, x))
        flat = [leaf.reshape(leaf.shape[0], -1).astype(dtype) for leaf in leaves]
        return jnp.concatenate(flat, axis=1) @ directions

    def engine(params: PyTree, x: PyTree) -> PyTree:
        examples = "joint" if subject.joint else "independent"
        return ntk(projected, params, x, reduction="full", examples=examples)

    # Inside a jit the engine's derivatives and products are one program: its steps, its tiles and
    # the check of independence, which was made before, would each be compiled by themselves.
    options = compiler_options(reduces=True, once=True)
    kernel = jax.jit(engine, compiler_options=options)(subject.params, subject.x)
    error = rows.error(kernel.array)
    # Half the digits of the coarsest number in the computation: errors of a wrong engine are far
    # larger.
    allowed = kernel.convention.coarsest(dtype) ** 0.5
    text = (
        f"kernel of {_counted(subject.count, 'example')}, "
        f"{_counted(directions.shape[1], 'output direction')}: "
        f"relative error {error:.1g} compared with plain jax.vjp"
    )
    if error <= allowed:
        return Check("engine", "ok", text)
    return Check("engine", "wrong", f"{text}, more than {allowed:.1g}: please report it")


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def jacobian_rows(subject: Subject) -> JacobianRows:
    """The rows, each by itself: J^T of a vector that is zero for all other examples."""
    options = compiler_options(reduces=True, once=True)

    @functools.partial(jax.jit, compiler_options=options)
    def forward(params: PyTree, x: PyTree) -> tuple[PyTree, Callable[..., tuple[PyTree]]]:
        # The transpose is a pytree, so that a compiled function can return it and take it.
        return jax.vjp(lambda params: subject.f(params, x), params)

    @functools.partial(jax.jit, compiler_options=options)
    def backward(transpose: Callable[..., tuple[PyTree]], cotangents: PyTree) -> PyTree:
        return transpose(cotangents)[0]

    outputs, transpose = forward(subject.params, subject.x)
    leaves, structure = jax.tree.flatten(outputs)
    sizes = [int(np.prod(leaf.shape[1:], dtype=int)) for leaf in leaves]
    # One direction is a vector over the outputs of all leaves: [c k], cut into [c_leaf k].
    n_outputs = sum(sizes)
    directions = np.random.default_rng(0).normal(size=(n_outputs, min(DIRECTIONS, n_outputs)))
    directions = directions.astype(np.float16).astype(np.float64)  # the same in every dtype
    directions_by_leaf = np.split(directions, np.cumsum(sizes)[:-1])

    rows = []
    for example in range(leaves[0].shape[0]):
        for k in range(directions.shape[1]):
            # Also where examples interact this is the row of one.
            cotangents = []
            for leaf, of_leaf in zip(leaves, directions_by_leaf, strict=True):
                cotangent = np.zeros(leaf.shape, leaf.dtype)
                cotangent[example] = of_leaf[:, k].reshape(leaf.shape[1:])
                cotangents.append(jnp.asarray(cotangent))
            gradient = backward(transpose, jax.tree.unflatten(structure, cotangents))
            by_path = leaves_by_path(gradient)
            rows.append({path: np.asarray(leaf) for path, leaf in by_path.items()})
    return JacobianRows(rows, directions)
