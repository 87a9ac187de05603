"""The gap between a network and its linearization while both are trained.

Both go through the same batches with the same optimizer, each by itself. At some steps they stop:

    rms, max, relative    how far apart their outputs are, f_t - f_t^lin
    e1, e2                how far the network's own outputs are from its Taylor models at its own
                          parameters, so that two runs that drift apart do not count
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import display, errors
from ntkdiag.baselines.trainer import log_spaced, train
from ntkdiag.baselines.training_data import Data, accuracy, batches, read_data
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.precision import in_full_precision
from ntkdiag.linearization.gap import linearization_gap
from ntkdiag.linearization.taylor import linearize
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.progress import under_way

GAPS = ("e1", "e2", "rms", "max", "relative", "accuracy_gap")
Series: TypeAlias = Float[np.ndarray, " T"]  # one number for each mark
# The quantities at one mark, by their fields in `GapHistory`: numbers of JAX or NumPy, or None.
Row: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class GapHistory:
    """Network and linearization along training, on the test examples.

    Every array has one entry for each recorded step.

    Attributes:
        steps: `[T]` numbers of steps since the linearization point.
        rms: Root mean square of f_t - f_t^lin over examples and outputs, each trained on its own.
        max: Largest |f_t - f_t^lin|.
        relative: rms over the root mean square of f_t - f_0; NaN at step 0.
        e1: ||df - J dtheta|| / ||df|| at the network's own parameters; NaN at step 0.
        e2: The same with the second-order term; None if not asked for.
        agreement: Share of examples with the same argmax; None where outputs are no classes.
        accuracy: Of the network; None likewise.
        accuracy_lin: Of the linearized network; None likewise.
        loss: Of the network.
        loss_lin: Of the linearized network.
    """

    steps: Int[np.ndarray, " T"]
    rms: Series
    max: Series
    relative: Series
    e1: Series
    e2: Series | None
    agreement: Series | None
    accuracy: Series | None
    accuracy_lin: Series | None
    loss: Series
    loss_lin: Series

    @property
    def accuracy_gap(self) -> Series | None:
        """Accuracy of the network minus that of its linearization."""
        if self.accuracy is None or self.accuracy_lin is None:
            return None
        return self.accuracy - self.accuracy_lin

    @errors.public
    def first_beyond(self, tolerance: float, name: str = "e1") -> int | None:
        """The first recorded step at which a gap is above a tolerance.

        That is how long a linearization holds from here. With ``name="e1"`` and 0.1 this is the
        local linearization time scale of the checkpoint, in steps. It is not finer than the
        recorded steps. A run that left the finite numbers is beyond any tolerance.

        Cost: none.

        Args:
            tolerance: In the units of the gap; for "accuracy_gap" either sign counts.
            name: The gap: "e1", "e2", "rms", "max", "relative" or "accuracy_gap".

        Returns:
            A step, or None when the gap stayed within.

        Raises:
            InvalidInputError: When no such gap was recorded.
        """
        values = getattr(self, name) if name in GAPS else None
        if values is None:
            known = [f'"{gap}"' for gap in GAPS if getattr(self, gap) is not None]
            raise errors.InvalidInputError(
                expected=" or ".join(known),
                got=repr(name),
                do="accuracy_gap needs class numbers as labels, e2 second_order=True.",
            )
        # NaN compares as within: a run that diverged has to be asked for by itself.
        has_diverged = ~np.isfinite(self.rms)
        beyond = np.flatnonzero((np.abs(values) > tolerance) | has_diverged)
        return int(self.steps[beyond[0]]) if beyond.size else None

    def to_dict(self) -> dict[str, display.PlainValue]:
        """Every series as plain JSON values."""
        return display.plain({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def __repr__(self) -> str:
        return (
            f"GapHistory({len(self.steps)} records to step {self.steps[-1]}: "
            f"max rms {np.max(self.rms):.3g}, e1 {self.e1[-1]:.3g} at the end, "
            f"beyond 0.1 from step {self.first_beyond(0.1)})"
        )


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
) -> GapHistory:
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
        opt_state: State of the optimizer at the checkpoint, which both models go on from; None for
            a fresh one.
        second_order: Whether to record e2.
        seed: Of the order of examples.
        progress: Whether to show how far it has come, and the time left. None does on a terminal
            after two seconds; True wherever output goes.

    Returns:
        The history.

    Raises:
        InvalidInputError: When data, loss, steps or marks are not as described.
    """
    read = read_data(data, loss, f, params)
    recorded = _read_marks(marks, steps)
    order = batches(read.n, batch_size, steps, seed)
    f_lin = linearize(f, params)
    # Both runs are generators: only the parameters of one mark are held.
    network = train(f, params, optimizer, read, order, recorded, opt_state)
    linear = train(f_lin, params, optimizer, read, order, recorded, opt_state)
    compare = comparer(f, params, read, second_order)
    rows = []
    with under_way("training", steps, progress) as work:
        for mark, network_at_mark, linear_at_mark in zip(recorded, network, linear, strict=True):
            rows.append(compare(network_at_mark.params, linear_at_mark.params))
            work.reach(mark)
    return history_of(recorded, rows)


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


def comparer(
    f: Callable[..., PyTree], params: PyTree, data: Data, second_order: bool
) -> Callable[[PyTree, PyTree], Row]:
    """What evaluates parameters of f against parameters of its linearization at `params`.

    It returns one row for `history_of`, at the cost of about eight forward passes over the test
    set.
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
        rms = _root_mean_square(difference)
        # At the parameters of the network alone: what the Taylor models say of them.
        gap = linearization_gap(f, params, network_params, x, second_order=second_order)
        row = {
            "rms": rms,
            "max": jnp.max(jnp.abs(difference)),
            "relative": rms / _root_mean_square(outputs - f(params, x)),
            "e1": gap.e1,
            "e2": gap.e2,
            "loss": data.loss(outputs, y),
            "loss_lin": data.loss(outputs_lin, y),
            "accuracy": accuracy(outputs, classes),
            "accuracy_lin": accuracy(outputs_lin, classes),
        }
        if outputs.ndim == 2 and outputs.shape[1] > 1:
            is_same = jnp.argmax(outputs, axis=1) == jnp.argmax(outputs_lin, axis=1)
            row["agreement"] = jnp.mean(is_same)
        return row

    # Data are arguments: constants of the program would be folded, and held twice.
    full = in_full_precision(compare)
    compiled = jax.jit(full, compiler_options=compiler_options(reduces=True) or None)

    def on_test_examples(network_params: PyTree, linear_params: PyTree) -> Row:
        arguments = network_params, linear_params, data.x_test, data.y_test, data.classes_test
        # Before anything has moved, errors relative to the motion are 0 / 0: NaN is their value.
        with jax.debug_nans(False):
            return jax.device_get(compiled(*arguments))

    return on_test_examples


def _root_mean_square(values: Float[Array, "..."]) -> Float[Array, ""]:
    """The root of the mean of squares over all entries."""
    return jnp.sqrt(jnp.mean(values**2))


def history_of(marks: Sequence[int], rows: Sequence[Row]) -> GapHistory:
    """The rows of a `comparer`, one for each mark, as a history."""
    series = {}
    for field in dataclasses.fields(GapHistory):
        if field.name != "steps":
            series[field.name] = _series(field.name, rows)
    return GapHistory(steps=np.asarray(marks), **series)


def _series(name: str, rows: Sequence[Row]) -> Series | None:
    """One quantity of all rows; None where it was not measured."""
    if rows[0].get(name) is None:
        return None
    return np.array([float(row[name]) for row in rows])
