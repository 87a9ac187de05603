"""The losses that are means over examples: squared error and the two cross-entropies."""

import abc
import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from ntkdiag import display, errors
from ntkdiag.arrays import as_array
from ntkdiag.losses.curvature import (
    CurvatureFactor,
    DiagonalFactor,
    IdentityFactor,
    SoftmaxFactor,
)
from ntkdiag.losses.loss import Loss, Shape
from ntkdiag.losses.targets import (
    are_class_numbers,
    as_numbers,
    read_class_numbers,
    read_targets,
    require_probabilities,
    shaped_like_outputs,
)
from ntkdiag.nouns import pytree
from ntkdiag.scalars import Number, is_concrete, require_positive


@dataclasses.dataclass(frozen=True)
class MeanLoss(Loss):
    """L = (1/D) sum_i l(f_i, y_i).

    Attributes:
        denominator: D; None for the number of examples (and positions, where each has a loss of its
            own).

    Raises:
        InvalidInputError: When the denominator is not a positive number.
    """

    denominator: Number | None = None
    formula: ClassVar[str]

    @errors.public
    def __post_init__(self) -> None:
        if self.denominator is not None:
            require_positive(self.denominator, "denominator")

    @abc.abstractmethod
    def per_example(self, outputs: Float[Array, "n *o"], y: Array) -> Float[Array, " n"]:
        """l(f_i, y_i), summed over the positions of an example."""

    def terms(self, shape: Shape) -> int:
        """How many terms the sum has for outputs of a shape."""
        return shape[0]

    def denominator_for(self, shape: Shape) -> Number:
        """D for outputs of a shape."""
        return float(self.terms(shape)) if self.denominator is None else self.denominator

    def __call__(self, outputs: Float[Array, "n *o"], y: Array) -> Float[Array, ""]:
        """L at these outputs; `y` as `read` returned it."""
        return self.per_example(outputs, y).sum() / self.denominator_for(outputs.shape)

    def describe(self, shape: Shape) -> str:
        """The loss in words, with what its sum is divided by for outputs of a shape."""
        if self.denominator is not None:
            return f"{self.formula}, divided by {self.denominator:g}"
        # One term an example, unless each position of an example has a loss of its own.
        if self.terms(shape) == shape[0]:
            return f"{self.formula}, mean over examples"
        return f"{self.formula}, mean over examples and positions"


@pytree("denominator")
@dataclasses.dataclass(frozen=True)
class MSE(MeanLoss):
    """Half the squared error, l = 1/2 ||f - y||^2, summed over outputs.

    Attributes:
        denominator: D; None for the number of examples. N C for a mean over outputs too (as
            `optax.l2_loss(...).mean()` and neural-tangents), N / 2 for a squared error without the
            half.

    Example:
        >>> import jax.numpy as jnp
        >>> float(MSE()(jnp.array([[1.0, 2.0]]), jnp.array([[0.0, 0.0]])))
        2.5
    """

    name: ClassVar[str] = "mse"
    formula: ClassVar[str] = "1/2 squared error, summed over outputs"
    is_quadratic: ClassVar[bool] = True

    def __repr__(self) -> str:
        return display.described(self)

    @errors.public
    def read(self, y: PyTree, shape: Shape) -> Float[Array, "..."]:
        """Targets shaped like the outputs; class numbers become one-hot rows."""
        return read_targets(y, shape)

    def per_example(self, outputs: Float[Array, "n *o"], y: Array) -> Float[Array, " n"]:
        """1/2 ||f_i - y_i||^2."""
        squares = jnp.square(outputs - y).reshape(outputs.shape[0], -1)  # [n *o] -> [n (o)]
        return 0.5 * squares.sum(axis=1)

    def curvature(
        self, outputs: Float[ArrayLike, "n *o"], y: PyTree | None = None
    ) -> CurvatureFactor:
        """The identity."""
        return IdentityFactor()


@pytree("denominator")
@dataclasses.dataclass(frozen=True)
class CrossEntropy(MeanLoss):
    """Softmax cross-entropy over the last axis, l = -log softmax(f)[y], at every position.

    Attributes:
        denominator: D; None for the number of examples and positions.
    """

    name: ClassVar[str] = "cross_entropy"
    formula: ClassVar[str] = "softmax cross-entropy"

    def __repr__(self) -> str:
        return display.described(self)

    @errors.public
    def read(self, y: PyTree, shape: Shape) -> Array:
        """Class numbers `[n ...]`, or probabilities `[n ... c]` that sum to 1."""
        self.require_fit(shape)
        array = as_numbers(y)
        # Integers beside several logits are classes; one-hot rows have the shape of the logits.
        if are_class_numbers(array, shape):
            return read_class_numbers(array, shape)
        targets = shaped_like_outputs(array, shape)
        require_probabilities(targets)
        return targets

    def per_example(self, outputs: Float[Array, "n *o"], y: Array) -> Float[Array, " n"]:
        """-log softmax(f_i)[y_i], summed over positions."""
        log_p = jax.nn.log_softmax(outputs, axis=-1)
        # Probabilities [n ... c] weigh all logarithms, class numbers [n ...] pick one of them.
        if y.shape == outputs.shape:
            of_labels = jnp.sum(y * log_p, axis=-1)
        else:
            of_labels = jnp.take_along_axis(log_p, y[..., None], axis=-1)[..., 0]
        return -of_labels.reshape(outputs.shape[0], -1).sum(axis=1)

    def require_fit(self, shape: Shape) -> None:
        """Refuse a softmax over a single logit: it is 1, and its curvature 0."""
        if len(shape) < 2 or shape[-1] < 2:
            raise errors.InvalidInputError(
                expected="two or more logits on the last axis of the outputs, for cross-entropy",
                got=f"outputs of shape {shape}",
                do='Use loss="sigmoid_cross_entropy" for a single logit.',
            )

    def terms(self, shape: Shape) -> int:
        """Examples times positions."""
        return math.prod(shape[:-1])

    @errors.public
    def curvature(
        self, outputs: Float[ArrayLike, "n *o"], y: PyTree | None = None
    ) -> CurvatureFactor:
        """diag(p) - p p^T over the last axis, at every position."""
        logits = as_outputs(outputs)
        self.require_fit(logits.shape)
        # One block for each softmax: [n ... c] -> [b c], b examples times positions.
        p = jax.nn.softmax(logits, axis=-1)
        return SoftmaxFactor(jnp.sqrt(p).reshape(-1, p.shape[-1]))


@pytree("denominator")
@dataclasses.dataclass(frozen=True)
class SigmoidCrossEntropy(MeanLoss):
    """Binary cross-entropy of every output as a logit, l = -log sigmoid(+-f), summed over outputs.

    Attributes:
        denominator: D; None for the number of examples.
    """

    name: ClassVar[str] = "sigmoid_cross_entropy"
    formula: ClassVar[str] = "binary cross-entropy, summed over outputs"

    def __repr__(self) -> str:
        return display.described(self)

    @errors.public
    def read(self, y: PyTree, shape: Shape) -> Float[Array, "..."]:
        """Probabilities in [0, 1] shaped like the outputs; class numbers become one-hot rows."""
        targets = read_targets(y, shape)
        if is_concrete(targets) and not bool(((targets >= 0) & (targets <= 1)).all()):
            raise errors.InvalidInputError(
                expected="labels from 0 to 1 for sigmoid cross-entropy",
                got=f"values from {float(targets.min()):.3g} to {float(targets.max()):.3g}",
                do="0 and 1 are the two classes; probabilities lie between them.",
            )
        return targets

    def per_example(self, outputs: Float[Array, "n *o"], y: Array) -> Float[Array, " n"]:
        """-y log sigmoid(f) - (1 - y) log sigmoid(-f), summed over outputs."""
        when_true = -jax.nn.log_sigmoid(outputs)
        when_false = -jax.nn.log_sigmoid(-outputs)
        per_output = y * when_true + (1 - y) * when_false
        return per_output.reshape(outputs.shape[0], -1).sum(axis=1)

    @errors.public
    def curvature(
        self, outputs: Float[ArrayLike, "n *o"], y: PyTree | None = None
    ) -> CurvatureFactor:
        """diag(p (1 - p))."""
        logits = as_outputs(outputs)
        p = jax.nn.sigmoid(logits)
        one_minus_p = jax.nn.sigmoid(-logits)  # 1 - p would cancel where p is close to 1
        return DiagonalFactor(jnp.sqrt(p * one_minus_p).reshape(-1))


def as_outputs(outputs: Float[ArrayLike, "n *o"]) -> Float[Array, "n *o"]:
    """The values f(params, x) as an array, refused where they are not finite."""
    array = jnp.asarray(as_array(outputs, "outputs"))
    if is_concrete(array) and not np.isfinite(np.asarray(array, np.float64)).all():
        raise errors.InvalidInputError(
            expected="finite `outputs`",
            got="NaN or Inf",
            do="Look for overflow in the model's outputs.",
        )
    return array
