"""The linearized model fitted with and without single examples, in function space.

Weights alpha on the training rows give the outputs f = f_0 + K alpha. They minimize

    sum_i l_i(f_i) + ridge / 2 alpha^T K alpha,    where    ridge alpha + g(f) = 0,    g = dl / df.

1. With all examples: Newton's method. With H = d^2 l / df^2, block by block, its matrix is
   ridge I + H K; a step is halved until the objective falls.
2. Without example i: alpha_i = 0, and the equations of the others hold. Newton's matrix is that of
   all examples without the rows and columns of i, and its inverse comes from that of all, A, by
   one block: steps delta = A (r + E_i mu), with mu such that alpha_i becomes 0. The first step is

       delta = -A E_i (A_ii)^-1 alpha_i,

   the formula of Allen (PRESS), with which a squared loss has arrived. For others H has moved, a
   little, and r is what the equations of the others lack: the steps are repeated with the same A,
   for all i side by side.

All of it on the host in float64.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, PyTree

from ntkdiag.losses import Loss

# Steps, and their size relative to the weights at which an iteration has arrived.
_MOST_STEPS = 100
_ARRIVED = 1e-11
_MOST_HALVINGS = 40

Weights = Float64[np.ndarray, "k *columns"]


@dataclasses.dataclass(frozen=True)
class FunctionSpaceLoss:
    """sum_i l_i as a function of the outputs of all examples, with its derivatives in float64."""

    loss: Loss  # the loss
    labels: PyTree  # labels as it reads them
    shape: tuple[int, ...]  # of the outputs, `[n ...]`

    def terms(self, outputs: Float64[np.ndarray, "columns k"]) -> Float64[np.ndarray, "columns n"]:
        """l_i for rows of outputs of all examples."""
        with _in_float64():
            return np.asarray(self._compiled.terms(jnp.asarray(outputs), self.labels))

    def gradient(
        self, outputs: Float64[np.ndarray, "columns k"]
    ) -> Float64[np.ndarray, "columns k"]:
        """g for rows of outputs of all examples."""
        with _in_float64():
            return np.asarray(self._compiled.gradient(jnp.asarray(outputs), self.labels))

    def hessians(self, outputs: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, "n c c"]:
        """H, one block for each example."""
        with _in_float64():
            rows = jnp.asarray(outputs).reshape(self.shape[0], -1)  # [k] -> [n c]
            return np.asarray(self._compiled.hessians(rows, self.labels))

    @functools.cached_property
    def _compiled(self) -> "_Compiled":
        shape_of_one = self.shape[1:]

        def terms(flat: jax.Array, labels: PyTree) -> jax.Array:
            return self.loss.example_terms(flat.reshape(-1, *shape_of_one), labels)

        def total(flat: jax.Array, labels: PyTree) -> jax.Array:
            return terms(flat, labels).sum()

        def of_one(flat: jax.Array, labels: PyTree) -> jax.Array:
            return total(flat, jax.tree.map(lambda leaf: leaf[None], labels))

        return _Compiled(
            terms=jax.jit(jax.vmap(terms, (0, None))),
            gradient=jax.jit(jax.vmap(jax.grad(total), (0, None))),
            hessians=jax.jit(jax.vmap(jax.hessian(of_one))),
        )


@contextlib.contextmanager
def _in_float64() -> Iterator[None]:
    """Float64 beside labels in float32, whatever the session forbids in its own code."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


class _Compiled(NamedTuple):
    """The functions of a loss, compiled once: of outputs and labels."""

    terms: Callable[..., jax.Array]
    gradient: Callable[..., jax.Array]
    hessians: Callable[..., jax.Array]


def fit(
    kernel: Float[np.ndarray, "k k"],
    start: Float[np.ndarray, " k"],
    loss: FunctionSpaceLoss,
    ridge: float,
) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, "k n"]]:
    """Weights with all examples, and in column i without example i.

    Columns are NaN where the iteration does not arrive, as of a loss that is not convex, or of a
    small ridge.
    """
    problem = _Problem(np.asarray(kernel, np.float64), np.asarray(start, np.float64), loss, ridge)
    weights = _fit_all(problem)
    return weights, _leave_each_out(problem, weights)


@dataclasses.dataclass(frozen=True)
class _Problem:
    """What is minimized over the weights alpha, and its derivatives."""

    kernel: Float64[np.ndarray, "k k"]  # K
    start: Float64[np.ndarray, " k"]  # f_0
    loss: FunctionSpaceLoss  # sum_i l_i
    ridge: float  # what multiplies alpha^T K alpha / 2

    @property
    def n_outputs(self) -> int:
        """Rows of one example, c."""
        return len(self.start) // self.loss.shape[0]

    def objective(self, weights: Float64[np.ndarray, " k"]) -> float:
        """sum_i l_i(f_i) + ridge / 2 alpha^T K alpha."""
        along = self.kernel @ weights
        terms = self.loss.terms((self.start + along)[None])
        return terms.sum() + 0.5 * self.ridge * weights @ along

    def lacking(self, weights: Weights) -> Weights:
        """-(ridge alpha + g(f)), what the equations lack; of one column of weights, or several."""
        columns = weights.reshape(len(self.start), -1)
        gradients = self.loss.gradient((self.start[:, None] + self.kernel @ columns).T).T
        return -(self.ridge * columns + gradients).reshape(weights.shape)

    def newton_matrix(self, weights: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, "k k"]:
        """ridge I + H K."""
        hessians = self.loss.hessians(self.start + self.kernel @ weights)
        n, c, _ = hessians.shape
        # Block by block.
        of_rows = np.einsum("nop,npk->nok", hessians, self.kernel.reshape(n, c, -1))
        return self.ridge * np.eye(n * c) + of_rows.reshape(n * c, n * c)


def _fit_all(problem: _Problem) -> Float64[np.ndarray, " k"]:
    """Newton's method, with steps that are halved until the objective does not rise."""
    weights = np.zeros_like(problem.start)
    value = problem.objective(weights)
    for _ in range(_MOST_STEPS):
        step = np.linalg.solve(problem.newton_matrix(weights), problem.lacking(weights))
        for _ in range(_MOST_HALVINGS):
            moved = problem.objective(weights + step)
            if moved <= value + 1e-12 * abs(value):
                break
            step = 0.5 * step
        weights, value = weights + step, moved
        if np.linalg.norm(step) <= _ARRIVED * np.linalg.norm(weights):
            return weights
    return np.full_like(weights, np.nan)


def _leave_each_out(
    problem: _Problem, weights: Float64[np.ndarray, " k"]
) -> Float64[np.ndarray, "k n"]:
    """The steps of 2., for all examples side by side: column i is without example i."""
    n, c = problem.loss.shape[0], problem.n_outputs
    index = np.arange(n)
    inverse = np.linalg.inv(problem.newton_matrix(weights))
    blocks = inverse.reshape(n, c, n, c)
    own = blocks[index, :, index, :]  # A_ii, [n c c]
    left_out = np.repeat(weights[:, None], n, axis=1)
    right = np.zeros_like(left_out)  # r, which is 0 with all examples
    for _ in range(_MOST_STEPS):
        step = inverse @ right
        # mu_i: alpha_i becomes 0.
        remaining = (left_out + step).reshape(n, c, n)[index, :, index]  # [n c]
        mu = -np.linalg.solve(own, remaining[..., None])[..., 0]
        step += np.einsum("knc,nc->kn", inverse.reshape(n * c, n, c), mu)  # A E_i mu_i
        with np.errstate(over="ignore", invalid="ignore"):  # some may diverge
            left_out = left_out + step
        size = np.linalg.norm(step, axis=0)
        # A squared loss is there after one step: the next one is rounding.
        has_arrived = size <= _ARRIVED * np.linalg.norm(left_out, axis=0)
        if has_arrived.all():
            break
        right = problem.lacking(left_out)
        right.reshape(n, c, n)[index, :, index] = 0.0  # example i has no equation
    return np.where(has_arrived, left_out, np.nan)
