"""The gap between a network and its linearization while both are trained."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag._jax import compiler_options
from ntkdiag.baselines.trainer import log_spaced, train
from ntkdiag.baselines.training_data import Data, accuracy, batches, read_data
from ntkdiag.linearization.gap import linearization_gap
from ntkdiag.linearization.taylor import linearize
from ntkdiag.losses.loss_argument import LossLike


@dataclasses.dataclass(frozen=True, eq=False)
class GapHistory:
    """Network and linearization along training, on the test examples; every array has one entry for each step.

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

    steps: np.ndarray
    rms: np.ndarray
    max: np.ndarray
    relative: np.ndarray
    e1: np.ndarray
    e2: np.ndarray | None
    agreement: np.ndarray | None
    accuracy: np.ndarray | None
    accuracy_lin: np.ndarray | None
    loss: np.ndarray
    loss_lin: np.ndarray

    @property
    def accuracy_gap(self) -> np.ndarray | None:
        """Accuracy of the network minus that of its linearization."""
        if self.accuracy is None or self.accuracy_lin is None:
            return None
        return self.accuracy - self.accuracy_lin

    @errors.public
    def first_beyond(self, tolerance: float, name: str = "e1") -> int | None:
        """The first recorded step at which a gap is above a tolerance: how long a linearization holds from here.

        With ``name="e1"`` and 0.1 this is the local linearization time scale of the checkpoint, in steps. It is not
        finer than the recorded steps. A run that left the finite numbers is beyond any tolerance.

        Cost: none.

        Args:
            tolerance: In the units of the gap; for "accuracy_gap" either sign counts.
            name: The gap: "e1", "e2", "rms", "max", "relative" or "accuracy_gap".

        Returns:
            A step, or None when the gap stayed within.

        Raises:
            InvalidInputError: When no such gap was recorded.
        """
        values = getattr(self, name, None) if name in _GAPS else None
        if values is None:
            known = [gap for gap in _GAPS if getattr(self, gap) is not None]
            raise errors.InvalidInputError(
                expected=" or ".join(f'"{gap}"' for gap in known),
                got=repr(name),
                do="accuracy_gap needs class numbers as labels, e2 second_order=True.",
            )
        beyond = np.flatnonzero((np.abs(values) > tolerance) | ~np.isfinite(self.rms))
        return int(self.steps[beyond[0]]) if beyond.size else None

    def __repr__(self) -> str:
        return (
            f"GapHistory({len(self.steps)} records to step {self.steps[-1]}: max rms {np.max(self.rms):.3g}, "
            f"e1 {self.e1[-1]:.3g} at the end, beyond 0.1 from step {self.first_beyond(0.1)})"
        )


_GAPS = ("e1", "e2", "rms", "max", "relative", "accuracy_gap")


@errors.public
def gap_over_training(
    f: Callable[..., Any],
    params: Any,
    data: Any,
    optimizer: Any,
    *,
    loss: LossLike,
    steps: int = 200,
    batch_size: int | None = None,
    marks: Sequence[int] | None = None,
    opt_state: Any = None,
    second_order: bool = True,
    seed: int = 0,
) -> GapHistory:
    """Train a network and its linearization at `params` by the same optimizer on the same batches; record the gap.

    `params` may be any checkpoint: `first_beyond` then says for how many steps from there a linear model explains
    training.
    Cost: training twice, about 8/3 of training the network, and a few forward passes over the test set per mark.
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
        opt_state: State of the optimizer at the checkpoint, which both models go on from; None for a fresh one.
        second_order: Whether to record e2.
        seed: Of the order of examples.

    Returns:
        The history.

    Raises:
        InvalidInputError: When data, loss, steps or marks are not as described.
    """
    read = read_data(data, loss, f, params)
    marks = log_spaced(steps) if marks is None else [int(mark) for mark in marks]
    if (
        steps < 0
        or not marks
        or list(marks) != sorted(set(marks))
        or marks[0] < 0
        or marks[-1] > steps
    ):
        raise errors.InvalidInputError(
            expected="ascending `marks` between 0 and `steps`",
            got=f"{marks} and {steps}",
            do="Sort the marks.",
        )
    order = batches(read.n, batch_size, steps, seed)
    own = train(f, params, optimizer, read, order, marks, opt_state)
    linear = train(linearize(f, params), params, optimizer, read, order, marks, opt_state)
    compare = comparer(f, params, read, second_order)
    return history_of(marks, [compare(p, q) for (p, _), (q, _) in zip(own, linear, strict=True)])


def comparer(
    f: Callable[..., Any], params: Any, data: Data, second_order: bool
) -> Callable[[Any, Any], dict]:
    """Evaluate parameters of a network against parameters of its linearization.

    Cost of a call: about eight forward passes over the test set.

    Args:
        f: The network.
        params: Where it is linearized.
        data: The data.
        second_order: Whether to compute e2.

    Returns:
        A function of the two parameters that returns one row for `history_of`.
    """
    f_lin = linearize(f, params)

    def compare(p: PyTree, q: PyTree, x: PyTree, y: PyTree, classes: Any) -> dict[str, Any]:
        outputs, theirs, start = f(p, x), f_lin(q, x), f(params, x)
        apart, moved = outputs - theirs, jnp.sqrt(jnp.mean((outputs - start) ** 2))
        gap = linearization_gap(f, params, p, x, second_order=second_order)
        rms = jnp.sqrt(jnp.mean(apart**2))
        found = {
            "rms": rms,
            "max": jnp.max(jnp.abs(apart)),
            "relative": rms / moved,
            "e1": gap.e1,
            "e2": gap.e2,
        }
        found["loss"] = data.loss(outputs, y)
        found["loss_lin"] = data.loss(theirs, y)
        if outputs.ndim == 2 and outputs.shape[1] > 1:
            same = jnp.argmax(outputs, axis=1) == jnp.argmax(theirs, axis=1)
            found["agreement"] = jnp.mean(same)
        found["accuracy"] = accuracy(outputs, classes)
        found["accuracy_lin"] = accuracy(theirs, classes)
        return found

    run = jax.jit(compare, compiler_options=compiler_options(reduces=True) or None)
    return lambda p, q: jax.device_get(run(p, q, data.x_test, data.y_test, data.classes_test))


def history_of(marks: Sequence[int], rows: Sequence[dict]) -> GapHistory:
    """Put the rows of a `comparer` together.

    Cost: none.

    Args:
        marks: The steps.
        rows: One for each.

    Returns:
        The history.
    """
    names = [field.name for field in dataclasses.fields(GapHistory)][1:]

    def column(name: str) -> Any:
        return None if rows[0].get(name) is None else np.array([float(row[name]) for row in rows])

    return GapHistory(np.asarray(marks), **{name: column(name) for name in names})
