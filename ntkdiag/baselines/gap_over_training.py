"""The gap between a network and its linearization while both are trained.

Both go through the same batches with the same optimizer, each by itself. At some steps they stop:

    rms, largest, relative  how far apart their outputs are, f_t - f_t^lin
    e1, e2                  how far the network's own outputs are from its Taylor models at its own
                            parameters, so that two runs that drift apart do not count
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from ntkdiag import errors
from ntkdiag.baselines.training import (
    Data,
    Position,
    accuracy,
    agreement,
    batches,
    log_spaced,
    read_data,
    root_mean_square,
    train,
)
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.precision import in_full_precision
from ntkdiag.linearization.gap import linearization_gap
from ntkdiag.linearization.taylor import linearize
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.progress import Work, under_way

if TYPE_CHECKING:
    import xarray

Row: TypeAlias = dict[str, Any]  # the numbers of one step: of JAX or NumPy, or None


@errors.public
def gap_over_training(
    f: Callable[..., PyTree],
    params: PyTree,
    data: PyTree,
    optimizer: Any,
    *,
    loss: LossLike,
    steps: int = 200,
    batch_size: int | None = None,
    marks: Sequence[int] | None = None,
    opt_state: PyTree = None,
    second_order: bool = True,
    seed: int = 0,
    progress: bool | None = None,
) -> "xarray.Dataset":
    """Train a network and its linearization at `params`, and record the gap.

    Both by the same optimizer on the same batches. `params` may be any checkpoint: `first_beyond`
    then says for how many steps from there a linear model explains training.

    Cost: training twice, about 8/3 of training the network, and a few forward passes over the test
    set per mark.

    Source: Lee et al. 2019 (arXiv 1902.06720); Fort et al. 2020 (2010.15110) for linearizing later.

    Args:
        f: `f(params, x)` with one array of outputs.
        params: Where to begin and to linearize.
        data: `(x, y, x_test, y_test)`; gaps are measured on the test examples.
        optimizer: An Optax transformation.
        loss: The loss that is trained: its name, an object of `ntkdiag.losses`, or a function
            `loss(outputs, y)`.
        steps: Number of steps.
        batch_size: Examples per step; None for all.
        marks: Ascending steps to record; None for about a dozen, logarithmically spaced from 0.
        opt_state: State of the optimizer at the checkpoint, from which both models start; None
            for a fresh one.
        second_order: Whether to record e2.
        seed: Of the order of examples.
        progress: Whether to show how far it has come, and the time left. None does on a terminal
            after two seconds; True wherever output goes.

    Returns:
        One number for each recorded step, on the test examples:

        - `rms`, `largest`: root mean square, and largest, of f_t - f_t^lin over examples and
          outputs, each trained on its own; `relative`: rms over that of f_t - f_0, NaN at step 0;
        - `e1`: ||df - J dtheta|| / ||df|| at the network's own parameters, NaN at step 0; `e2`: the
          same with the second-order term;
        - `loss`, `accuracy` of the network, `loss_lin`, `accuracy_lin` of its linearization, and
          `agreement`: the share of examples with the same argmax. Where outputs or labels are no
          classes these are left out.

    Raises:
        InvalidInputError: When data, loss, steps or marks are not as described.
    """
    read = read_data(data, loss, f, params)
    recorded = _read_marks(marks, steps)
    order = batches(read.n, batch_size, steps, seed)
    start = Position(params, optimizer.init(params) if opt_state is None else opt_state)
    training = Training(f, start, optimizer, read, order, recorded, second_order)
    with under_way("training", steps, progress) as work:
        training.run(work)
    return training.linearizations[0].gap()


@errors.public
def first_beyond(gap: "xarray.Dataset", tolerance: float, name: str = "e1") -> int | None:
    """The first recorded step at which a gap is above a tolerance.

    That is how long a linearization holds from here. With ``name="e1"`` and 0.1 this is the local
    linearization time scale of the checkpoint, in steps. It is not finer than the recorded steps. A
    run that left the finite numbers is beyond any tolerance.

    Cost: none.

    Args:
        gap: What `gap_over_training` returned, or `gap` of a `LinearBaseline`.
        tolerance: In the units of the number.
        name: The number: "e1", "e2", "rms", "largest" or "relative".

    Returns:
        A step, or None when the gap stayed within.

    Raises:
        InvalidInputError: When no such number was recorded.
    """
    if name not in gap:
        raise errors.InvalidInputError(
            expected=f"one of {', '.join(map(str, gap))}",
            got=repr(name),
            do="e2 needs second_order=True.",
        )
    # NaN compares as within: a run that diverged has to be asked for by itself.
    is_beyond = (abs(gap[name]) > tolerance) | ~np.isfinite(gap["rms"])
    steps = gap["step"].values[is_beyond.values]
    return int(steps[0]) if steps.size else None


class Training:
    """A network beside its linearizations: at the start, and at one later step if asked.

    All go through the same batches with the same optimizer, each by itself. Only the parameters of
    one step are held.
    """

    def __init__(
        self,
        f: Callable[..., PyTree],
        start: Position,
        optimizer: Any,
        data: Data,
        order: Int[np.ndarray, "steps size"],
        marks: Sequence[int],
        second_order: bool = True,
    ):
        self.network = start.params
        self.marks = marks
        self._f = f
        self._settings = optimizer, data
        self._order = order
        self._second_order = second_order
        self._positions = train(f, start, optimizer, data, order, marks)
        self.linearizations = [self._linearized(start, 0)]

    def run(self, work: Work, checkpoint: int | None = None) -> None:
        """Train to the last mark; the checkpoint, if any, is one of the marks."""
        for mark, position in zip(self.marks, self._positions, strict=True):
            self.network = position.params
            if mark == checkpoint:
                self.linearizations.append(self._linearized(position, mark))
            for linearization in self.linearizations:
                linearization.follow(position.params)
            work.reach(mark)

    def _linearized(self, position: Position, step: int) -> "_Linearization":
        """The linear model at a step, with the parameters and the optimizer state there."""
        f_lin = linearize(self._f, position.params)
        marks = [mark - step for mark in self.marks if mark >= step]
        # A single row stands for all steps.
        order = self._order[step:] if len(self._order) > 1 else self._order
        return _Linearization(
            f_lin,
            marks,
            train(f_lin, position, *self._settings, order, marks),
            _comparer(self._f, position.params, self._settings[1], self._second_order),
        )


class _Linearization:
    """A linear model in training, and its gaps to the network so far."""

    def __init__(
        self,
        f: Callable[..., PyTree],
        marks: Sequence[int],
        positions: Iterator[Position],
        compare: Callable[[PyTree, PyTree], Row],
    ):
        self.f = f
        self.params: PyTree = None
        self._marks = marks
        self._positions = positions
        self._compare = compare
        self._rows: list[Row] = []

    def follow(self, network: PyTree) -> None:
        """Train to the next mark, and compare with the parameters of the network there."""
        self.params = next(self._positions).params
        self._rows.append(self._compare(network, self.params))

    def gap(self) -> "xarray.Dataset":
        """The gaps over the steps since the linearization; what was not measured is left out."""
        import xarray

        names = [name for name, value in self._rows[0].items() if value is not None]
        numbers = {name: ("step", [float(row[name]) for row in self._rows]) for name in names}
        return xarray.Dataset(numbers, {"step": list(self._marks)})


def _read_marks(marks: Sequence[int] | None, steps: int) -> list[int]:
    """The steps to record, refused where they do not ascend from 0 to the last step."""
    recorded = log_spaced(steps) if marks is None else [int(mark) for mark in marks]
    is_ascending = recorded == sorted(set(recorded))
    is_within = all(0 <= mark <= steps for mark in recorded)
    if steps < 0 or not recorded or not is_ascending or not is_within:
        raise errors.InvalidInputError(
            expected="ascending `marks` between 0 and `steps`",
            got=f"{recorded} and {steps}",
            do="Sort the marks.",
        )
    return recorded


def _comparer(
    f: Callable[..., PyTree], params: PyTree, data: Data, second_order: bool
) -> Callable[[PyTree, PyTree], Row]:
    """What evaluates parameters of f against parameters of its linearization at `params`.

    Cost: about eight forward passes over the test set.
    """
    f_lin = linearize(f, params)

    def compare(
        network_params: PyTree,
        linear_params: PyTree,
        x: PyTree,
        y: PyTree,
        classes: Int[Array, "..."] | None,
    ) -> Row:
        # Each trained on its own: outputs [m ...] of both, and how far they are apart.
        outputs = f(network_params, x)
        outputs_lin = f_lin(linear_params, x)
        difference = outputs - outputs_lin
        rms = root_mean_square(difference)
        # At the parameters of the network alone: what the Taylor models say of them.
        gap = linearization_gap(f, params, network_params, x, second_order=second_order)
        return {
            "rms": rms,
            "largest": jnp.max(jnp.abs(difference)),
            "relative": rms / root_mean_square(outputs - f(params, x)),
            "e1": gap.e1,
            "e2": gap.e2,
            "loss": data.loss(outputs, y),
            "loss_lin": data.loss(outputs_lin, y),
            "accuracy": accuracy(outputs, classes),
            "accuracy_lin": accuracy(outputs_lin, classes),
            "agreement": agreement(outputs, outputs_lin),
        }

    # Data are arguments: constants of the program would be folded, and held twice.
    full = in_full_precision(compare)
    compiled = jax.jit(full, compiler_options=compiler_options(reduces=True))

    def on_test_examples(network_params: PyTree, linear_params: PyTree) -> Row:
        arguments = network_params, linear_params, data.x_test, data.y_test, data.classes_test
        # Before anything has moved, errors relative to the motion are 0 / 0: NaN is their value.
        with jax.debug_nans(False):
            return jax.device_get(compiled(*arguments))

    return on_test_examples
