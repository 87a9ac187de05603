"""The change of a prediction when a training example is left out.

The linearized model is fitted with and without each example, in function space. Weights alpha on
the training rows give the outputs f = f_0 + K alpha. They minimize

    sum_i l_i(f_i) + ridge / 2 alpha^T K alpha,    where    ridge alpha + g(f) = 0,    g = dl / df.

1. With all examples: Newton's method. With H = d^2 l / df^2, block by block, its matrix is
   ridge I + H K; a step is halved until the objective falls.
2. Without example i: alpha_i = 0, and the equations of the others hold. Newton's matrix is that of
   all examples without the rows and columns of i, and its inverse comes from that of all, A, by
   one block: steps delta = A (r + E_i mu), with mu such that alpha_i becomes 0. The first step is

       delta = -A E_i (A_ii)^-1 alpha_i,

   the formula of Allen (PRESS), with which a squared loss has arrived. For other losses H has moved
   a little, and r is what the remaining equations lack: the steps are repeated with the same A, for
   all i side by side.

All of it on the host in float64.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, PyTree

from ntkdiag import display, errors
from ntkdiag.arrays import require_positive
from ntkdiag.engine import Memory, ntk
from ntkdiag.gradients.example_losses import (
    FunctionSpaceLoss,
    columns_of,
    example_losses,
    with_keywords,
)
from ntkdiag.kernel.kernel_argument import spectrum
from ntkdiag.linearization.gap import linearization_gap
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.pytree_dataclass import pytree

# Steps at most, and their size relative to the weights that counts as arrived.
_MOST_STEPS = 100
_ARRIVED = 1e-11
_UNSEEN = 1e-3  # up to this size rounding may hide that a step lowers the objective
_MOST_HALVINGS = 40

Weights = Float64[np.ndarray, "k *columns"]


@pytree("prediction", "loss", "outputs", "e1")
@dataclasses.dataclass(frozen=True, eq=False)
class Influence:
    """The change of test predictions when a training example is left out: after minus before.

    Attributes:
        prediction: `[N left out, N test, ...]`, change of the outputs of the fitted linearized
            model, in units of f; the axes of f's outputs come last.
        loss: `[N left out, N test]`, change of the loss of each test example, in units of the loss:
            above 0 where the training example helped, below 0 where it hurt.
        outputs: `[N test, ...]`, outputs of the linearized model fitted with all examples.
        e1: How far to trust it for the network: the error of the linearized model at the fitted
            parameters, relative to the change of the outputs from `params` to there, on the test
            examples. Below 0.1 the influences are nearly those of the network; near 1 they describe
            only the linearized model.
        ridge: The ridge of the fit.
    """

    prediction: Float[np.ndarray, "train test *o"]
    loss: Float[np.ndarray, "train test"]
    outputs: Float[np.ndarray, "test *o"]
    e1: float
    ridge: float

    @errors.public
    def most_harmful(self, count: int = 10) -> np.ndarray:
        """The training examples whose omission lowers the test loss most, the worst first.

        Args:
            count: How many.

        Returns:
            Their indices, at most `count`: those that do hurt on average over the test examples.

        Cost: none.
        """
        change = np.asarray(self.loss).mean(axis=1)
        order = np.argsort(change)[:count]
        return order[change[order] < 0]

    def to_dict(self) -> dict[str, display.PlainValue]:
        """The numbers by name, arrays as nested lists."""
        return display.plain({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def __repr__(self) -> str:
        return display.described(self)


@errors.public
def influence(
    f: Callable[..., PyTree],
    params: PyTree,
    train: tuple[PyTree, PyTree],
    test: tuple[PyTree, PyTree],
    *,
    loss: LossLike,
    ridge: float,
    memory: Memory | None = None,
    **kwargs: Any,
) -> Influence:
    """The change when a training example is left out, after minus before, in units of f and loss.

    Above 0 in `.loss`: the test loss rises without the example, which helped. The model that is
    fitted is the linearization of f at `params`, f(params) + J (theta - params), under

        sum_i l_i + ridge / 2 ||theta - params||^2,

    with l_i the loss of an example as `gradient_kernel` has it ("mse" half the square), with all
    training examples and without each of them. For that model the numbers are exact, for
    any loss that is convex in the outputs: by one formula where it is squared, by Newton's
    iteration in function space where it is not. `.e1` says how far the network follows.

    Args:
        f: `f(params, x, **kwargs)`, with one array of outputs.
        params: Where f is linearized: initial parameters, or trained ones.
        train: (x, y), the training examples with their labels; weights as
            `ntkdiag.losses.Weighted(y, weights)`.
        test: (x, y), the test examples with their labels.
        loss: As for `gradient_kernel`.
        ridge: In units of the kernel's eigenvalues, above 0: what is added to them. It stands for
            the length of training, too, as 1 / (eta t): what has smaller eigenvalues is hardly
            learned.
        memory: As for `ntk`.
        **kwargs: Passed to f.

    Returns:
        Changes of predictions `[N left out, N test, ...]` and losses `[N left out, N test]`. Those
        of an example are NaN where the iteration does not arrive: raise the ridge.

    Raises:
        InvalidInputError: As `gradient_kernel`; or the ridge is not above 0, or is below the
            resolution of the kernel.
        MemoryBudgetError: As `ntk`.

    Cost: the full kernel of N training examples; its inverse on the host, O((N C)^3), and 2 (N C)^2
    N for each iteration of a loss that is not squared.

    Source: Allen 1974 (PRESS); Koh and Liang 2017, arXiv:1703.04730, whose first order it replaces;
    Park et al. 2023 (TRAK), arXiv:2303.14186, for the linearized model.

    Example:
        >>> import jax.numpy as jnp, ntkdiag
        >>> f = lambda w, x: x @ w
        >>> x, y = jnp.array([[1.0], [1.0]]), jnp.array([[1.0], [3.0]])
        >>> found = ntkdiag.influence(
        ...     f, jnp.zeros((1, 1)), (x, y), (x[:1], y[:1]), loss="mse", ridge=1.0
        ... )
        >>> print(found.prediction[:, 0, 0].round(4))  # 4/3 with both, 3/2 and 1/2 with one
        [ 0.1667 -0.8333]
    """
    require_positive(ridge, "ridge")
    g, (x, labels) = example_losses(f, params, *train, loss=loss, **kwargs)
    x_test, labels_test = columns_of(g, params, *test, kwargs)

    network = with_keywords(f, kwargs)
    kernel_of = functools.partial(ntk, f, params, reduction="full", memory=memory, **kwargs)
    operator = NTKOperator(network, params, x)
    n, n_test = operator.n_examples, jax.tree.leaves(x_test)[0].shape[0]
    shape = operator.output_shape
    full = kernel_of(operator.x)
    resolution = full.noise_floor * float(spectrum(full).largest)
    if ridge <= resolution:
        raise errors.InvalidInputError(
            expected=f"a `ridge` above the resolution of the kernel, {resolution:.3g}",
            got=f"{float(ridge):.3g}",
            do="A smaller ridge fits rounding errors: raise it, or compute in float64.",
        )
    to_test = np.asarray(kernel_of(x_test, operator.x).matrix, np.float64)
    start = np.asarray(operator.outputs(), np.float64).reshape(-1)
    of_train = FunctionSpaceLoss(g.loss, labels, (n, *shape))
    problem = _Problem(np.asarray(full.matrix, np.float64), start, of_train, float(ridge))
    weights = _fit_all(problem)
    changes = (to_test @ (_leave_each_out(problem, weights) - weights[:, None])).T

    # Test outputs of the fit with all examples, [(test o)]; changes are [n, (test o)].
    before = np.asarray(network(params, x_test), np.float64).reshape(-1) + to_test @ weights
    of_test = FunctionSpaceLoss(g.loss, labels_test, (n_test, *shape))
    loss_change = of_test.terms(before + changes) - of_test.terms(before[None])

    # The network at the fitted parameters, params + J^T weights.
    step = operator.cotangent(jnp.asarray(weights, operator.dtype))
    moved = jax.tree.map(lambda p, d: p + d.astype(p.dtype), operator.params, step)
    gap = linearization_gap(network, operator.params, moved, x_test, second_order=False)
    return Influence(
        prediction=changes.reshape(n, n_test, *shape),
        loss=g.scale * loss_change,  # in units of the named loss
        outputs=before.reshape(n_test, *shape),
        e1=float(gap.e1),
        ridge=float(ridge),
    )


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

    def residual(self, weights: Weights) -> Weights:
        """-(ridge alpha + g(f)), for one column of weights or several."""
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
    """Newton's method, steps halved until the objective does not rise; NaN if it never arrives."""
    weights = np.zeros_like(problem.start)
    value = problem.objective(weights)
    for _ in range(_MOST_STEPS):
        step = np.linalg.solve(problem.newton_matrix(weights), problem.residual(weights))
        size = np.linalg.norm(step)  # of the whole step: a halved one is small anywhere
        for _ in range(_MOST_HALVINGS):
            moved = problem.objective(weights + step)
            is_unseen = size <= _UNSEEN * np.linalg.norm(weights)
            if is_unseen or moved <= value + 1e-12 * abs(value):
                break
            step = 0.5 * step
        else:
            break
        weights, value = weights + step, moved
        if size <= _ARRIVED * np.linalg.norm(weights):
            return weights
    return np.full_like(weights, np.nan)


@np.errstate(over="ignore", invalid="ignore")  # some may diverge
def _leave_each_out(
    problem: _Problem, weights: Float64[np.ndarray, " k"]
) -> Float64[np.ndarray, "k n"]:
    """The steps of 2., for all examples side by side: column i is without example i."""
    n, c = problem.loss.shape[0], problem.n_outputs
    index = np.arange(n)
    inverse = np.linalg.inv(problem.newton_matrix(weights))
    blocks = inverse.reshape(n, c, n, c)
    diagonal = blocks[index, :, index, :]  # A_ii, [n c c]
    left_out = np.repeat(weights[:, None], n, axis=1)
    right = np.zeros_like(left_out)  # r, which is 0 with all examples
    for _ in range(_MOST_STEPS):
        step = inverse @ right
        # mu_i: alpha_i becomes 0.
        remaining = (left_out + step).reshape(n, c, n)[index, :, index]  # [n c]
        mu = -np.linalg.solve(diagonal, remaining[..., None])[..., 0]
        step += np.einsum("knc,nc->kn", inverse.reshape(n * c, n, c), mu)  # A E_i mu_i
        left_out = left_out + step
        size = np.linalg.norm(step, axis=0)
        # A squared loss is minimal after one step: the next one is rounding.
        has_arrived = size <= _ARRIVED * np.linalg.norm(left_out, axis=0)
        if (has_arrived | np.isnan(size)).all():
            break
        right = problem.residual(left_out)
        right.reshape(n, c, n)[index, :, index] = 0.0  # example i has no equation
    return np.where(has_arrived, left_out, np.nan)
