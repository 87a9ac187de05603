"""The stability margin of a training set from some of its examples, with its error.

The largest eigenvalue h of the Gauss-Newton matrix G = (1/D) sum_i A_i, A_i = J_i^T Sigma_i J_i, is
a sum over examples: h = sum_i a_i with a_i = v^T A_i v / D and v the eigenvector. To first order an
example that is left out takes its a_i with it, so the standard error of h over examples is that of
N times the mean of the a_i (the infinitesimal jackknife). In function space, where u is the top
eigenvector of L^T Theta L, the sums cost nothing: a_i = h ||u_i||^2 over the rows i of one example.

A largest eigenvalue of a mean is above the mean of that eigenvalue: v is chosen for these examples.
This bias falls as 1/N; the margins of two halves of the examples show how large it is.
"""

import dataclasses

import numpy as np
from jaxtyping import PyTree

from ntkdiag import display, errors
from ntkdiag.analysis.curvature_products import CurvatureProducts, Outputs, curvature_products
from ntkdiag.analysis.stability import require_preconditioned
from ntkdiag.descent import DescentLike, as_descent
from ntkdiag.losses.loss_argument import LossLike, require_loss
from ntkdiag.matrix_free.operator import NTKOperator, require_square

_FEWEST_EXAMPLES = 8


@dataclasses.dataclass(frozen=True)
class SampledMargin:
    """The stability margin of some training examples, as a measurement of that of all of them.

    Attributes:
        margin: That of these examples, as `stability_margin` returns it.
        standard_error: Of the margin, over examples.
        residual: Of the eigenvalue it rests on, relative to that: the error of the computation is
            no larger, and about its square.
        n_examples: N.
        products: Products with the operator that it took.
    """

    margin: float
    standard_error: float
    residual: float
    n_examples: int
    products: int

    def __float__(self) -> float:
        """The margin of these examples."""
        return self.margin

    def to_dict(self) -> dict[str, display.PlainValue]:
        """The numbers by name, as plain JSON values."""
        return display.plain(dataclasses.asdict(self))

    def __repr__(self) -> str:
        return (
            f"SampledMargin({self.margin:.4g} +- {self.standard_error:.2g} of {self.n_examples} "
            "examples)"
        )


@errors.public
def sampled_margin(
    operator: NTKOperator,
    descent: DescentLike,
    *,
    loss: LossLike | None = None,
    outputs: Outputs | None = None,
    y: PyTree | None = None,
) -> SampledMargin:
    """The stability margin of a training set, measured on some of its examples, with its error.

    The number is that of `stability_margin`. Beside it stands its standard error over examples, to
    first order from what each example contributes to the largest eigenvalue. A largest eigenvalue
    of few examples is also too large on average, by a bias that falls as 1/N: `stability_margin` of
    two random halves shows it. An example is a row of x, with all its positions. For examples drawn
    at random; where they are the whole training set, the margin has no such error.

    Cost: that of `stability_margin`, about 10 products with the operator.

    Source: Efron 1982, The Jackknife, the Bootstrap and Other Resampling Plans, chapter 6.

    Args:
        operator: `NTKOperator(f, params, x)` of training examples, 8 or more, drawn at random.
        descent: As for `stability_margin`, with a learning rate.
        loss: As for `stability_margin`.
        outputs: As for `stability_margin`.
        y: As for `stability_margin`.

    Returns:
        The margin and its standard error.

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
    # The margin is a multiple of h, but for the weight decay, which has no error.
    curvature = float(value) / float(products.denominator)
    of_curvature = rate * curvature / float(rule.threshold)
    return SampledMargin(
        margin=float(rule.margin(curvature)),
        standard_error=of_curvature * relative_error,
        residual=float(largest.residuals[0] / max(value, np.finfo(float).tiny)),
        n_examples=n,
        products=largest.products,
    )


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
