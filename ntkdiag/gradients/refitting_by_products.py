"""The linearized model fitted with and without single examples, by products with its kernel alone.

The equations are those of `refitting`: ridge alpha + g(f) = 0 with f = f_0 + K alpha. The kernel is
never formed, so there is no inverse that all examples share: leaving one out is a fit by itself.

1. With all examples: Newton's method, with steps that are halved until the objective falls.
2. Without example i: Newton's method from the weights of all. There the equations lack nothing but
   g_i, as the loss of example i is gone. A squared loss takes one step. What the fit with all
   examples left of its equations is no part of an example's influence, so it is taken off.

Each step is (H K + ridge) a = b by conjugate gradients, in the norm of K: what has no image under K
changes no output, and is not solved for.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import _jax
from ntkdiag.gradients.refitting import FunctionSpaceLoss
from ntkdiag.losses import Loss
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.newton_system import WithImage, solve_newton
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.matrix_free.solvers import CG
from ntkdiag.scalars import Scalar

_MOST_STEPS = 50
_MOST_HALVINGS = 40
# What a step of Newton's method leaves at most of what the equations lacked before it.
_FALLS = 0.5
# What is left then, relative to the beginning, beyond which there is no solution.
_LEAST_ACCURATE = 1e-2


class Point(NamedTuple):
    """Weights of the linearized model, and its outputs there.

    Attributes:
        weights: alpha, `[n ...]`.
        image: K alpha, `[n ...]`.
    """

    weights: Float[Array, "n *o"]
    image: Float[Array, "n *o"]

    def plus(self, step: "Point", factor: float = 1.0) -> "Point":
        """After a step, or a part of it."""
        return Point(self.weights + factor * step.weights, self.image + factor * step.image)


class Refit(NamedTuple):
    """A solution, and how well it solves the equations.

    Attributes:
        point: The weights; of an example that is left out, their change. NaN where Newton's method
            does not arrive.
        residual: What the equations lack at the end over what they lacked at the beginning, in the
            norm of K.
    """

    point: Point
    residual: float


@dataclasses.dataclass(frozen=True, eq=False)
class ProblemByProducts:
    """What is minimized over the weights, sum_i l_i + ridge / 2 alpha^T K alpha.

    Attributes:
        operator: K, never formed.
        start: f_0, `[n ...]`.
        loss: sum_i l_i in the outputs.
        ridge: The ridge.
        solver: Of the linear systems.
    """

    operator: NTKOperator
    start: Float[Array, "n *o"]
    loss: FunctionSpaceLoss
    ridge: float
    solver: CG

    def fit(self) -> Refit:
        """1. Fit with all examples."""
        everyone = jnp.ones(self.operator.n_examples, self.start.dtype)
        nothing_left = jnp.zeros_like(self.start)
        point = self._nothing()
        right, norm = self._lacking(point, everyone, nothing_left)
        first = norm
        for _ in range(_MOST_STEPS):
            if norm <= self.solver.tolerance * first:
                break
            moved = self._halved(point, self._step(point, everyone, right))
            if moved is None:  # the objective is as low as rounding lets it be
                break
            point = moved
            right, norm = self._lacking(point, everyone, nothing_left)
        return _arrived(point, norm, first)

    def left_over(self, everything: Point) -> Float[Array, "n *o"]:
        """What the fit with all examples lacks still."""
        everyone = jnp.ones(self.operator.n_examples, self.start.dtype)
        (right, _), _ = self._lacking(everything, everyone, jnp.zeros_like(self.start))
        return right

    def without(self, example: int, everything: Point, left_over: Float[Array, "n *o"]) -> Refit:
        """2. The change of the weights when an example is left out of the fit with all."""
        kept = jnp.ones(self.operator.n_examples, self.start.dtype).at[example].set(0.0)
        change = self._nothing()
        right, norm = self._lacking(everything, kept, left_over)
        first, before = norm, np.inf
        for _ in range(_MOST_STEPS):
            # The second: a step that leaves nearly as much has met rounding.
            if norm <= self.solver.tolerance * first or norm > _FALLS * before:
                break
            change = change.plus(self._step(everything.plus(change), kept, right))
            before = norm
            right, norm = self._lacking(everything.plus(change), kept, left_over)
        return _arrived(change, norm, first)

    def _nothing(self) -> Point:
        """No weights."""
        return Point(jnp.zeros_like(self.start), jnp.zeros_like(self.start))

    def _lacking(
        self, point: Point, kept: Float[Array, " n"], left_over: Float[Array, "n *o"]
    ) -> tuple[WithImage, float]:
        """-(ridge alpha + g(f)) less what may be left over, its image, and its norm."""
        right, squared_norm = run(
            _lacking,
            self.operator,
            point,
            self.start + point.image,
            kept,
            left_over,
            self.loss.labels,
            self._ridge,
            static=(self.loss.loss,),
        )
        return right, float(np.sqrt(max(float(squared_norm), 0.0)))

    def _step(self, point: Point, kept: Float[Array, " n"], right: WithImage) -> Point:
        """Newton's step."""
        solved = run(
            _newton_step,
            self.operator,
            self.start + point.image,
            kept,
            right,
            self.loss.labels,
            self._ridge,
            static=(self.loss.loss, self.solver),
        )
        return Point(*solved)

    def _halved(self, point: Point, step: Point) -> Point | None:
        """After a step that is halved until the objective falls; None where it does not."""
        value = self._objective(point)
        for halving in range(_MOST_HALVINGS):
            moved = point.plus(step, 0.5**halving)
            if self._objective(moved) < value:
                return moved
        return None

    def _objective(self, point: Point) -> float:
        """sum_i l_i(f_i) + ridge / 2 alpha^T K alpha, on the host in float64."""
        weights, image, start = (
            np.asarray(array, np.float64).reshape(-1) for array in (*point, self.start)
        )
        terms = self.loss.terms((start + image)[None])
        return float(terms.sum() + 0.5 * self.ridge * weights @ image)

    @property
    def _ridge(self) -> Scalar:
        return jnp.asarray(self.ridge, self.start.dtype)


def problem_by_products(
    operator: NTKOperator, loss: FunctionSpaceLoss, ridge: float, solver: CG
) -> ProblemByProducts:
    """The problem of the examples of an operator."""
    start = operator.outputs().astype(_jax.at_least_float32(operator.dtype))
    return ProblemByProducts(operator, start, loss, ridge, solver)


def _arrived(point: Point, norm: float, first: float) -> Refit:
    """The end of an iteration, NaN where it has not come near."""
    residual = 0.0 if first == 0 else norm / first
    if residual <= _LEAST_ACCURATE:
        return Refit(point, residual)
    weights, image = (jnp.full_like(array, jnp.nan) for array in point)
    return Refit(Point(weights, image), residual)


def _sum_over(
    kept: Float[Array, " n"], loss: Loss, labels: PyTree
) -> Callable[[Float[Array, "n *o"]], Scalar]:
    """The sum of the losses of the examples that are kept, as a function of the outputs."""

    def total(outputs: Float[Array, "n *o"]) -> Scalar:
        return jnp.sum(kept * loss.example_terms(outputs, labels))

    return total


def _lacking(
    operator: NTKOperator,
    point: Point,
    outputs: Float[Array, "n *o"],
    kept: Float[Array, " n"],
    left_over: Float[Array, "n *o"],
    labels: PyTree,
    ridge: Scalar,
    static: tuple[Loss],
) -> tuple[WithImage, Scalar]:
    """What the equations lack with its image, and its squared norm in K."""
    [loss] = static
    gradient = jax.grad(_sum_over(kept, loss, labels))(outputs)
    right = -(gradient + ridge * point.weights) - left_over
    image = operator.mv(right)
    return (right, image), jnp.vdot(right, image)


def _newton_step(
    operator: NTKOperator,
    outputs: Float[Array, "n *o"],
    kept: Float[Array, " n"],
    right: WithImage,
    labels: PyTree,
    ridge: Scalar,
    static: tuple[Loss, CG],
) -> WithImage:
    """a and K a with (H K + ridge) a = b."""
    loss, solver = static
    _, hessian_product = jax.linearize(jax.grad(_sum_over(kept, loss, labels)), outputs)
    return solve_newton(operator, hessian_product, right, ridge, solver).x
