"""The stability margin of a training set from some of its examples, with its error.

The largest eigenvalue h of the Gauss-Newton matrix G = (1/D) sum_i A_i, A_i = J_i^T Sigma_i J_i, is
a sum over examples: h = sum_i a_i with a_i = v^T A_i v / D and v the eigenvector. To first order an
example that is left out takes its a_i with it, so the standard error of h over examples is that of
N times the mean of the a_i (the infinitesimal jackknife). In function space, where u is the top
eigenvector of L^T Theta L, the sums cost nothing: a_i = h ||u_i||^2 over the rows i of one example.

A largest eigenvalue of a mean is above the mean of that eigenvalue: v is chosen for these examples.
This bias falls as 1/N. The examples are cut into halves at random, in which it is twice as large:

    bias = (h of one half + h of the other) / 2 - h
"""

import dataclasses

import numpy as np
from jaxtyping import Float64, PyTree

from ntkdiag import display, errors
from ntkdiag.analysis.curvature_products import CurvatureProducts, Outputs, curvature_products
from ntkdiag.analysis.stability import require_preconditioned
from ntkdiag.descent import DescentLike, as_descent
from ntkdiag.losses.loss_argument import LossLike, require_loss
from ntkdiag.matrix_free.lanczos import Vector
from ntkdiag.matrix_free.operator import NTKOperator, require_square

# Standard deviations that 95 % of a normal distribution lie within.
_DEVIATIONS = 1.96
_FEWEST_EXAMPLES = 8


@dataclasses.dataclass(frozen=True)
class SampledMargin:
    """The stability margin of some training examples, as a measurement of that of all of them.

    Attributes:
        margin: That of these examples, as `stability_margin` returns it.
        bias: Estimate of how far it is above that of all examples, because there are few; above
            zero but for chance.
        standard_error: Of the margin, over examples.
        residual: Of the eigenvalue it rests on, relative to that: the error of the computation is
            no larger, and about its square.
        n_examples: N.
        products: Products with the operator that it took.
    """

    margin: float
    bias: float
    standard_error: float
    residual: float
    n_examples: int
    products: int

    @property
    def corrected(self) -> float:
        """margin - bias: the estimate for the training set."""
        return self.margin - self.bias

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the margin of the training set."""
        error = _DEVIATIONS * self.standard_error
        return self.corrected - error, self.corrected + error

    def __float__(self) -> float:
        """The margin of these examples."""
        return self.margin

    def to_dict(self) -> dict[str, display.PlainValue]:
        """The numbers by name, as plain JSON values."""
        fields = dataclasses.asdict(self)
        return display.plain(fields | {"corrected": self.corrected, "interval": self.interval})

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"SampledMargin({self.margin:.4g} of {self.n_examples} examples; of all examples "
            f"{self.corrected:.3g} +- {self.standard_error:.2g}, 95 % in [{low:.3g}, {high:.3g}])"
        )

    def _repr_html_(self) -> str:
        low, high = self.interval
        rows = [
            ("margin", f"{self.margin:.4g}", f"of these {self.n_examples} examples"),
            ("bias", f"{self.bias:.2g}", "a largest eigenvalue of few examples is too large"),
            ("corrected", f"{self.corrected:.4g}", "of all examples, estimated"),
            ("standard error", f"{self.standard_error:.2g}", "over examples"),
            ("95 %", f"{low:.3g} to {high:.3g}", "of all examples"),
            ("residual", f"{self.residual:.1g}", "of the eigenvalue, relative"),
        ]
        return display.html_table("Stability margin of a sample", rows)


@errors.public
def sampled_margin(
    operator: NTKOperator,
    descent: DescentLike,
    *,
    loss: LossLike | None = None,
    outputs: Outputs | None = None,
    y: PyTree | None = None,
    seed: int = 0,
) -> SampledMargin:
    """The stability margin of a training set, measured on some of its examples, with its error.

    The number is that of `stability_margin`. Beside it stand what a sample adds to it: a standard
    error over examples, to first order from what each example contributes to the largest
    eigenvalue, and the bias of a largest eigenvalue of few examples, from random halves of them.
    An example is a row of x, with all its positions. For examples drawn at random; where they are
    the whole training set, the margin has no such error.

    Cost: about 30 products with the operator, and those of `stability_margin` are 10 of them.

    Source: Efron 1982, The Jackknife, the Bootstrap and Other Resampling Plans, chapters 6 and 8.

    Args:
        operator: `NTKOperator(f, params, x)` of training examples, 8 or more, drawn at random.
        descent: As for `stability_margin`, with a learning rate.
        loss: As for `stability_margin`.
        outputs: As for `stability_margin`.
        y: As for `stability_margin`.
        seed: Of the halves.

    Returns:
        The margin, its bias and its standard error.

    Raises:
        InvalidInputError: As `stability_margin`; no operator of examples with themselves is handed
            in, there are fewer than 8 examples, or the loss is not convex in the outputs.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntkdiag
        >>> x = jnp.linspace(-1, 1, 100)[:, None]
        >>> K = ntkdiag.NTKOperator(lambda w, x: x @ w, jnp.ones((1, 1)), x)
        >>> found = ntkdiag.analysis.sampled_margin(K, 1.0, loss="mse")
        >>> round(found.margin, 4), round(found.standard_error, 4)
        (0.17, 0.0153)
    """
    rule = as_descent(descent)
    rate = float(rule.require_learning_rate())
    trained_loss = require_loss(loss, "the curvature")
    require_square(operator)
    require_preconditioned(operator.preconditioner.kind, rule)
    _require_examples(operator)
    products = curvature_products(operator, trained_loss, outputs, y)
    _require_convex(products)
    largest = products.largest()
    [value] = largest.values
    [u] = largest.vectors.T
    squares = (u.reshape(products.n_examples, -1) ** 2).sum(axis=1)  # ||u_i||^2, which sum to 1
    n = products.n_examples
    # The standard error of a sum of n independent parts: sqrt(n) times their deviation.
    relative_error = float(np.sqrt(n) * np.std(squares, ddof=1))
    relative_bias, products_of_halves = _relative_bias(products, u, float(value), seed)
    # The margin is a multiple of h, but for the weight decay, which has no error.
    curvature = float(value) / float(products.denominator)
    of_curvature = rate * curvature / float(rule.threshold)
    return SampledMargin(
        margin=float(rule.margin(curvature)),
        bias=of_curvature * relative_bias,
        standard_error=of_curvature * relative_error,
        residual=float(largest.residuals[0] / max(value, np.finfo(float).tiny)),
        n_examples=n,
        products=largest.products + products_of_halves,
    )


def _relative_bias(
    products: CurvatureProducts, u: Vector, value: float, seed: int
) -> tuple[float, int]:
    """The mean of the largest eigenvalues of two halves, relative to that of all, less 1.

    And how many products it took.
    """
    if value <= 0.0:
        return 0.0, 0
    n = products.n_examples
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    # Both halves begin near the vector of all, with something of every other direction.
    start = u + 1e-2 * rng.normal(size=u.size) / u.size**0.5
    values = []
    n_products = 0
    for half in (order[: n // 2], order[n // 2 :]):
        pair = _of_examples(products, half).largest(_within(start, half, n))
        values.append(float(pair.values[0]) * n / half.size)  # a mean over the half alone
        n_products += pair.products
    return float(np.mean(values)) / value - 1.0, n_products


def _of_examples(products: CurvatureProducts, examples: np.ndarray) -> CurvatureProducts:
    """The rows and columns of some examples; zeros elsewhere, so that nothing is compiled anew."""

    def product(v: Vector, /) -> Vector:
        n = products.n_examples
        return _within(products.product(_within(v, examples, n)), examples, n)

    return dataclasses.replace(products, product=product)


def _within(v: Vector, examples: np.ndarray, n: int) -> Float64[np.ndarray, " k"]:
    """The rows of some examples of a vector over n examples, zeros elsewhere."""
    rows = v.reshape(n, -1)
    kept = np.zeros_like(rows)
    kept[examples] = rows[examples]
    return kept.reshape(-1)


def _require_convex(products: CurvatureProducts) -> None:
    """Refuse a loss that is not convex in the outputs: its examples do not add up to a margin."""
    if products.signs is not None:
        raise errors.InvalidInputError(
            expected="a loss that is convex in the outputs, whose examples each add to the margin",
            got="a Hessian with negative eigenvalues",
            do="stability_margin has the number without its error over examples.",
        )


def _require_examples(operator: NTKOperator) -> None:
    """Refuse so few examples that their scatter says nothing."""
    if operator.n_examples < _FEWEST_EXAMPLES:
        raise errors.InvalidInputError(
            expected=f"{_FEWEST_EXAMPLES} examples or more, from whose scatter the error comes",
            got=f"{operator.n_examples}",
            do="Take more examples, or stability_margin for the number alone.",
        )
