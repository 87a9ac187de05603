"""How fast each eigenmode of the kernel is learned, and what part of the labels lies in it.

Gradient descent on the linearized model under squared error multiplies the residual in mode k by
1 - r_k at every step, with the rate

    r_k = eta lambda_k / D.

All times follow from the rates: a time constant is 1 / r_k, and |1 - r_k|^t = epsilon is solved
for t. What is not resolved has rate 0: it is never learned. The labels have in mode k the power

    c_k = ||u_k^T Y||^2 / ||Y||^2.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag import display, errors
from ntkdiag.analysis.alignment import centred_array, read_with_labels
from ntkdiag.analysis.stability import shape_of_outputs
from ntkdiag.arrays import AnyArray, AnyScalar, Number, require_positive
from ntkdiag.descent import DescentLike, plain_learning_rate
from ntkdiag.kernel.kernel_argument import (
    KernelArgument,
    KernelLike,
    decomposed,
    read_square,
    refuse_trace,
)
from ntkdiag.kernel.spectrum import Spectrum, decompose
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses.loss_argument import LossLike, denominator_of, require_loss
from ntkdiag.pytree_dataclass import pytree


@pytree("eigenvalues", "power", "rates")
@dataclasses.dataclass(frozen=True, eq=False)
class Modes:
    """The eigenmodes of a kernel, the one that is learned fastest first.

    All of it extrapolates with the kernel held fixed; a network that learns features is faster.

    Attributes:
        eigenvalues: `[k]`, largest first; 0 where they are not resolved.
        power: `[k]` c_k, the share of the labels in each mode; None without labels. Where modes
            are not resolved it is 0: they have no direction.
        rates: `[k]` r_k = eta lambda_k / D, the share of the residual that a step takes away; None
            without a `descent`.
    """

    eigenvalues: Float[AnyArray, "*batch k"]
    power: Float[AnyArray, "*batch k"] | None
    rates: Float[AnyArray, "*batch k"] | None

    @property
    @errors.public
    def label_power(self) -> Float[AnyArray, "*batch k"]:
        """`[k]` C(k) = sum_{j <= k} c_j, the share of the labels in the k fastest modes.

        It rises to the share of the labels that the kernel can fit, 1 where it resolves all modes.
        With the residual f - y for labels it is the share of what is still to be learned. Within a
        group of equal eigenvalues only the value at its end is defined.
        """
        power = self._required("power")
        return power.__array_namespace__().cumsum(power, axis=-1)

    @property
    @errors.public
    def time_constants(self) -> Float[AnyArray, "*batch k"]:
        """`[k]` t_k = 1 / r_k: steps in which mode k of the residual falls by a factor e.

        Holds for eta far below critical; `steps_to` is exact. Infinite for unresolved modes.
        """
        rates = self._required("rates")
        with np.errstate(divide="ignore"):
            return 1.0 / rates

    @errors.public
    def steps_to(self, fraction: Number) -> Float[AnyArray, "*batch k"]:
        """Steps of gradient descent until mode k keeps this fraction of its residual.

        log(fraction) / log|1 - r_k|, exact for constant kernels.

        Args:
            fraction: epsilon, in (0, 1).

        Returns:
            `[k]` steps, not rounded; infinite for modes that diverge or are unresolved.

        Raises:
            InvalidInputError: When the fraction is not in (0, 1), or there was no `descent`.
        """
        require_positive(fraction, "fraction")
        require_positive(1.0 - fraction, "1 - fraction")
        rates = self._required("rates")
        xp = rates.__array_namespace__()
        # The share |1 - r| that a step leaves is 1 - s with s = r; beyond a rate of 1, where the
        # residual changes its sign, with s = 2 - r. Small s keep their digits in log(1 - s).
        share_removed = xp.where(rates < 1.0, rates, 2.0 - rates)
        with np.errstate(divide="ignore"):
            decay = -xp.log1p(-share_removed)  # of log|residual| in one step
            steps = -xp.log(xp.asarray(fraction, dtype=rates.dtype)) / decay
        # No decay: the rate is 0, not resolved, or 2 and more, and the mode diverges.
        return xp.where(decay <= 0.0, xp.inf, steps)

    @errors.public
    def reachable_power(self, steps: Number) -> AnyScalar:
        """The share of the labels in modes with a time constant below a budget of steps.

        With the residual f - y for labels: what part of the remaining error the budget can remove.

        Args:
            steps: The budget.

        Returns:
            A number in [0, 1].

        Raises:
            InvalidInputError: When the budget is not positive, or there were no labels or no
                `descent`.
        """
        require_positive(steps, "steps")
        power = self._required("power")
        rates = self._required("rates")
        is_reached = (rates * steps > 1.0) & (rates < 2.0)  # t_k < steps, and it does not diverge
        return power.__array_namespace__().where(is_reached, power, 0.0).sum(-1)

    def __repr__(self) -> str:
        return display.described(self)

    def _required(self, name: str) -> Float[AnyArray, "*batch k"]:
        """The power of the labels, or the rates; refused where they are not known."""
        values = getattr(self, name)
        if values is None:
            needed = "labels" if name == "power" else "a learning rate"
            raise errors.InvalidInputError(
                expected=f"modes beside {needed}",
                got="modes of a kernel alone",
                do="modes(kernel, y, descent=learning_rate).",
            )
        return values


@errors.public
@keeps_float64
def modes(
    kernel: KernelLike,
    y: jax.typing.ArrayLike | None = None,
    *,
    descent: DescentLike | None = None,
    loss: LossLike = "mse",
    centred: bool = False,
) -> Modes:
    """The eigenmodes of a kernel: what of the labels lies in each, and how fast it is learned.

    - Labels: c_k = ||u_k^T Y||^2 / ||Y||^2, and its sums `label_power`. What labels have in modes
      below the noise floor is in none of them, such as labels that contradict each other on equal
      inputs.
    - Times: gradient descent on the linearized model multiplies the residual in mode k by 1 - r_k
      with r_k = eta lambda_k / D: `time_constants`, `steps_to`, and with labels `reachable_power`.
      With a reduced kernel the modes are those of K kron I_C, an approximation.

    Cost: one eigendecomposition, O((NC)^3), with vectors where there are labels; none for a
    `Spectrum` that has what is needed, unless centred. Source: Canatar et al. 2021, "task-model
    alignment", for the label power.

    Args:
        kernel: A `Kernel`, its `Spectrum`, a matrix `[n n]` (beside `descent` with a loss that
            states its denominator), or a full kernel `[n o n o]`; beside `descent` not a trace,
            which is C times too large.
        y: `[n]` or `[n o]`: regression targets, residuals, one-hot rows, or class numbers if the
            kernel states its outputs; a reduced kernel sums the power over the columns. None: no
            power.
        descent: Plain gradient descent: its learning rate, or a `Descent` without momentum and
            decay. For momentum divide the learning rate by 1 - beta. None: no times.
        loss: Squared error, which these rates are of; `MSE(denominator=...)` where D is not the
            number of examples.
        centred: Centre kernel and labels over examples first, each output by itself: the constant
            mode is most of the kernel of a network with biases, and no label points there. Not
            beside `descent`, which trains with the kernel as it is.

    Returns:
        The modes, largest eigenvalue first; NaN, centred, for a kernel that is constant over
        examples.

    Raises:
        InvalidInputError: When kernel or labels are not finite or do not fit, the labels are all
            zero or, centred, the same for all examples; beside `descent`, when the kernel is a
            trace or centred, the loss is not squared error, the update rule is not plain, or a
            number is out of range.

    Example:
        >>> import numpy as np
        >>> kernel = np.diag([4.0, 2.0]).reshape(2, 1, 2, 1)  # two examples, one output
        >>> found = modes(kernel, np.array([[3.0], [1.0]]), descent=0.1)
        >>> found.label_power.round(6).tolist(), found.time_constants.tolist()
        ([0.9, 1.0], [5.0, 10.0])
        >>> round(float(found.reachable_power(7)), 6)  # the first mode, of 5 steps
        0.9
    """
    operand, labels = read_square(kernel), None
    if y is not None:
        operand, labels = read_with_labels(kernel, y, centred)
    rate_of_one = None
    if descent is not None:
        if centred:
            raise errors.InvalidInputError(
                expected="an uncentred kernel with `descent`, which trains with it",
                got="centred=True",
                do="Call modes twice: with centred=True for the labels, without it for the times.",
            )
        rate_of_one = _rate_of_one(operand, descent, loss)
    if centred:
        # A centred kernel is another matrix, so a spectrum passed in is of no use. Centring makes
        # the entries smaller, but not their errors.
        matrix = centred_array(operand).reshape(operand.matrix.shape)
        growth = jnp.abs(operand.matrix).max() / jnp.abs(matrix).max()
        solved = decompose(matrix, operand.resolution * growth, vectors=True)
    else:
        solved = decomposed(operand, vectors=labels is not None)
    eigenvalues = jnp.asarray(solved.resolved, operand.array.dtype)
    power = None if labels is None else _power(solved, labels, eigenvalues.dtype)
    rates = None if rate_of_one is None else rate_of_one * eigenvalues
    return Modes(eigenvalues, power, rates)


def _power(
    solved: Spectrum, labels: Float[Array, "n o"], dtype: jax.typing.DTypeLike
) -> Float[Array, " k"]:
    """The share of the labels in each mode; 0 in modes below the noise floor."""
    vectors = jnp.asarray(solved.vectors, dtype)
    # A full kernel has rows (n o) and one column of labels, a reduced one rows n and columns o.
    columns = labels.reshape(vectors.shape[0], -1)
    along_modes = vectors.T @ columns  # [k columns]
    power = jnp.sum(along_modes**2, axis=1) / jnp.sum(labels**2)
    is_lost = jnp.asarray(solved.eigenvalues) <= jnp.asarray(solved.noise_floor)  # no NaN is
    return jnp.where(is_lost, 0.0, power)


def _rate_of_one(operand: KernelArgument, descent: DescentLike, loss: LossLike) -> Number:
    """eta / D, the rate of a mode of eigenvalue 1."""
    learning_rate = plain_learning_rate(descent)
    squared_error = require_loss(loss, "the time constant of a mode")
    if not squared_error.is_quadratic:
        raise errors.InvalidInputError(
            expected="squared error: under another loss the modes do not decay one by one",
            got=f'loss="{squared_error.name}"',
            do="Pass loss=ntkdiag.losses.MSE(), or leave it out.",
        )
    refuse_trace(operand)
    return learning_rate / denominator_of(squared_error, shape_of_outputs(operand, None))
