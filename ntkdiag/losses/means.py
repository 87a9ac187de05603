"""The losses that are means over examples: squared error and the two cross-entropies."""

import abc
import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from ntkdiag import display, errors
from ntkdiag.arrays import AnyArray, Number, as_array, is_concrete, require_positive
from ntkdiag.losses.curvature import CurvatureFactor
from ntkdiag.losses.loss import Loss, Shape
from ntkdiag.losses.targets import (
    Labels,
    Weighted,
    are_class_numbers,
    as_numbers,
    beside,
    read_class_numbers,
    read_targets,
    read_weights,
    require_one_array,
    require_probabilities,
    shaped_like_outputs,
    with_filling,
)
from ntkdiag.pytree_dataclass import pytree


@dataclasses.dataclass(frozen=True, repr=False)
class MeanLoss(Loss):
    """L = (1/D) sum_i l(f_i, y_i)."""

    # D; None for the number of examples (and positions, where each has a loss of its own).
    denominator: Number | None = None
    formula: ClassVar[str]

    @errors.public
    def __post_init__(self) -> None:
        if self.denominator is not None:
            require_positive(self.denominator, "denominator")

    def __repr__(self) -> str:
        return display.described(self)

    @errors.public
    def read(self, y: PyTree, shape: Shape) -> PyTree:
        """Labels as `read_labels` reads them, `Weighted` with weights or where some are ignored."""
        labels, weights = (y.y, y.weights) if isinstance(y, Weighted) else (y, None)
        require_one_array(labels, self.name)
        if weights is not None:
            labels = with_filling(labels, weights, self.filling(labels, shape))
            weights = self._read_weights(weights, shape)
        is_counted = self.counted(labels, shape)
        if is_counted is not None:
            labels = jnp.where(is_counted, as_numbers(labels), 0)
            mask = is_counted.reshape(self.positions(shape))
            weights = mask if weights is None else beside(weights, mask.ndim) * mask
            weights = self._read_weights(weights, shape)
        labels = self.read_labels(labels, shape)
        return labels if weights is None else Weighted(labels, weights)

    def _read_weights(self, weights: AnyArray, shape: Shape) -> Float[Array, "n *t"]:
        divided_by_mean = self.denominator is None
        return read_weights(weights, self.positions(shape), divided_by_mean=divided_by_mean)

    @abc.abstractmethod
    def read_labels(self, y: PyTree, shape: Shape) -> Array:
        """Labels alone, without weights."""

    def filling(self, y: PyTree, shape: Shape) -> float | int:
        """What passes for a label where there is no weight; an integer leaves class numbers so."""
        return 0

    def counted(self, y: PyTree, shape: Shape) -> Bool[AnyArray, "n *t"] | None:
        """Which labels count; None where all of them do."""
        return None

    def positions(self, shape: Shape) -> Shape:
        """The leading axes of outputs of a shape that may have weights of their own."""
        return shape

    @errors.called("loss.per_example(outputs, y)")
    def per_example(
        self, outputs: Float[ArrayLike, "n *o"] | list, y: PyTree
    ) -> Float[Array, " n"]:
        """w l(f_i, y_i), summed over the positions of an example; labels as `read` takes them."""
        values = jnp.asarray(as_array(outputs, "outputs"))
        return self.example_terms(values, self.read(y, values.shape))

    def example_terms(self, outputs: Float[Array, "n *o"], labels: PyTree) -> Float[Array, " n"]:
        """w l(f_i, y_i), summed over the positions of an example."""
        weights = None
        if isinstance(labels, Weighted):
            labels, weights = labels.y, labels.weights
        per_position = self.per_position(outputs, labels)
        if weights is not None:
            weights = beside(weights, per_position.ndim)
            per_position = weights.astype(per_position.dtype) * per_position
        return per_position.reshape(outputs.shape[0], -1).sum(axis=1)  # [n *t] -> [n]

    @abc.abstractmethod
    def per_position(self, outputs: Float[Array, "n *o"], y: Array) -> Float[Array, "n *t"]:
        """l(f_i, y_i) of every output, or softmax, without weights."""

    def terms(self, shape: Shape) -> int:
        """How many terms the sum has for outputs of a shape."""
        return shape[0]

    def denominator_for(self, shape: Shape) -> Number:
        """D for outputs of a shape."""
        return float(self.terms(shape)) if self.denominator is None else self.denominator

    @errors.called("loss(outputs, y)")
    def __call__(self, outputs: Float[ArrayLike, "n *o"] | list, y: PyTree) -> Float[Array, ""]:
        """L at these outputs; labels as `read` takes them."""
        return self.per_example(outputs, y).sum() / self.denominator_for(np.shape(outputs))

    @errors.public
    def curvature(
        self, outputs: Float[ArrayLike, "n *o"], y: PyTree | None = None
    ) -> CurvatureFactor:
        """The curvature at these outputs; labels matter for their weights alone."""
        factor = self.curvature_at(outputs)
        if y is None:
            return factor
        shape = np.shape(outputs)
        labels = self.read(y, shape)
        if not isinstance(labels, Weighted):
            return factor
        weights = jnp.broadcast_to(beside(labels.weights, len(shape)), shape)
        return factor.weighted(weights.reshape(-1))

    @abc.abstractmethod
    def curvature_at(self, outputs: Float[ArrayLike, "n *o"]) -> CurvatureFactor:
        """The curvature at these outputs without weights."""

    def describe(self, shape: Shape) -> str:
        """The loss in words, with what its sum is divided by for outputs of a shape."""
        if self.denominator is not None:
            return f"{self.formula}, divided by {self.denominator:g}"
        # One term an example, unless each position of an example has a loss of its own.
        if self.terms(shape) == shape[0]:
            return f"{self.formula}, mean over examples"
        return f"{self.formula}, mean over examples and positions"


@pytree("denominator")
@dataclasses.dataclass(frozen=True, repr=False)
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

    def read_labels(self, y: PyTree, shape: Shape) -> Float[Array, "..."]:
        """Targets shaped like the outputs; class numbers become one-hot rows."""
        return read_targets(y, shape)

    def per_position(self, outputs: Float[Array, "n *o"], y: Array) -> Float[Array, "n *o"]:
        """1/2 (f_i - y_i)^2, output by output."""
        return 0.5 * jnp.square(outputs - y)

    def curvature_at(self, outputs: Float[ArrayLike, "n *o"]) -> CurvatureFactor:
        """The identity."""
        return CurvatureFactor()


@pytree("denominator")
@dataclasses.dataclass(frozen=True, repr=False)
class CrossEntropy(MeanLoss):
    """Softmax cross-entropy over the last axis, l = -log softmax(f)[y], at every position.

    Attributes:
        denominator: D; None for the number of examples and positions.
        ignore: The class number of positions that have no label, -100 as PyTorch has it, -1 or a
            padding token: they have no loss and no curvature, and do not count in D. None where
            every position has a label.
    """

    ignore: int | None = None

    name: ClassVar[str] = "cross_entropy"
    formula: ClassVar[str] = "softmax cross-entropy"

    def filling(self, y: PyTree, shape: Shape) -> float | int:
        """Class 0, or equal probabilities."""
        are_classes = are_class_numbers(as_array(y, "y"), shape)
        return 0 if are_classes else 1.0 / shape[-1]

    def counted(self, y: PyTree, shape: Shape) -> Bool[AnyArray, "n *t"] | None:
        """Where the label is not `ignore`; None of probabilities, or without `ignore`."""
        if self.ignore is None:
            return None
        labels = as_numbers(y)
        if not are_class_numbers(labels, shape):
            return None
        # Known values stay known inside the user's trace too.
        known = np.asarray(labels) if is_concrete(labels) else labels
        is_counted = known != self.ignore
        if is_concrete(is_counted) and not is_counted.any():
            raise errors.InvalidInputError(
                expected="a label at one position at least",
                got=f"{self.ignore}, which is ignored, at all of them",
                do="Take examples that have labels.",
            )
        return is_counted

    def positions(self, shape: Shape) -> Shape:
        """All axes but that of the classes."""
        return shape[:-1]

    def describe(self, shape: Shape) -> str:
        """The loss in words, with the positions that are left out."""
        words = super().describe(shape)
        return words if self.ignore is None else f"{words} that are not labelled {self.ignore}"

    def read_labels(self, y: PyTree, shape: Shape) -> Array:
        """Class numbers `[n ...]`, or probabilities `[n ... c]` that sum to 1."""
        self.require_fit(shape)
        array = as_numbers(y)
        # Integers beside several logits are classes; one-hot rows have the shape of the logits.
        if are_class_numbers(array, shape):
            self._require_labels(array)
            return read_class_numbers(array, shape)
        targets = shaped_like_outputs(array, shape)
        require_probabilities(targets)
        return targets

    def per_position(self, outputs: Float[Array, "n *o"], y: Array) -> Float[Array, "n *t"]:
        """-log softmax(f_i)[y_i], position by position; NaN where there is no such class."""
        return _softmax_cross_entropy(outputs, y)

    def _require_labels(self, y: Labels) -> None:
        """Refuse class numbers below 0, which mark what has no label: `ignore` leaves it out."""
        if not is_concrete(y) or np.asarray(y).min(initial=0) >= 0:
            return
        smallest = int(np.asarray(y).min())
        raise errors.InvalidInputError(
            expected="class numbers `y` from 0 up"
            + ("" if self.ignore is None else f", or {self.ignore} where a position is ignored"),
            got=f"values from {smallest} to {np.asarray(y).max()}",
            do=f"Pass loss=ntkdiag.losses.CrossEntropy(ignore={smallest}) where {smallest} marks "
            "positions without a label.",
        )

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

    def curvature_at(self, outputs: Float[ArrayLike, "n *o"]) -> CurvatureFactor:
        """diag(p) - p p^T over the last axis, at every position."""
        logits = as_outputs(outputs)
        self.require_fit(logits.shape)
        # One block for each softmax: [n ... c] -> [b c], b examples times positions.
        p = jax.nn.softmax(logits, axis=-1)
        root = jnp.sqrt(p)
        return CurvatureFactor(root.reshape(-1), direction=root.reshape(-1, p.shape[-1]))


@pytree("denominator")
@dataclasses.dataclass(frozen=True, repr=False)
class SigmoidCrossEntropy(MeanLoss):
    """Binary cross-entropy of every output as a logit, l = -log sigmoid(+-f), summed over outputs.

    Attributes:
        denominator: D; None for the number of examples.
    """

    name: ClassVar[str] = "sigmoid_cross_entropy"
    formula: ClassVar[str] = "binary cross-entropy, summed over outputs"

    def read_labels(self, y: PyTree, shape: Shape) -> Float[Array, "..."]:
        """Probabilities in [0, 1] shaped like the outputs; class numbers become one-hot rows."""
        targets = read_targets(y, shape)
        if not is_concrete(targets):
            return targets
        numbers = np.asarray(targets)
        if not ((numbers >= 0) & (numbers <= 1)).all():
            raise errors.InvalidInputError(
                expected="labels from 0 to 1 for sigmoid cross-entropy",
                got=f"values from {numbers.min():.3g} to {numbers.max():.3g}",
                do="0 and 1 are the two classes; probabilities lie between them.",
            )
        return targets

    def per_position(self, outputs: Float[Array, "n *o"], y: Array) -> Float[Array, "n *o"]:
        """-y log sigmoid(f) - (1 - y) log sigmoid(-f), output by output."""
        return _sigmoid_cross_entropy(outputs, y)

    def curvature_at(self, outputs: Float[ArrayLike, "n *o"]) -> CurvatureFactor:
        """diag(p (1 - p))."""
        logits = as_outputs(outputs)
        p = jax.nn.sigmoid(logits)
        one_minus_p = jax.nn.sigmoid(-logits)  # 1 - p would cancel where p is close to 1
        return CurvatureFactor(jnp.sqrt(p * one_minus_p).reshape(-1))


# Each in one program: operation by operation compiling takes longer.


@jax.jit
def _softmax_cross_entropy(outputs: Float[Array, "n *o"], y: Array) -> Float[Array, "n *t"]:
    log_p = jax.nn.log_softmax(outputs, axis=-1)
    # Probabilities [n ... c] weigh all logarithms, class numbers [n ...] pick one of them.
    if y.shape == outputs.shape:
        of_labels = jnp.sum(y * log_p, axis=-1)
    else:
        of_labels = jnp.take_along_axis(log_p, y[..., None], axis=-1)[..., 0]
        # Inside `jax.jit` labels are not checked; -1 would pick the last class.
        is_class = (y >= 0) & (y < outputs.shape[-1])
        of_labels = jnp.where(is_class, of_labels, jnp.nan)
    return -of_labels


@jax.jit
def _sigmoid_cross_entropy(outputs: Float[Array, "n *o"], y: Array) -> Float[Array, "n *o"]:
    when_true = -jax.nn.log_sigmoid(outputs)
    when_false = -jax.nn.log_sigmoid(-outputs)
    return y * when_true + (1 - y) * when_false


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
