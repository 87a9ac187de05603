"""The margin of stability of a checkpoint, of the network as it is trained.

    margin = lambda_max(E^1/2 J^T (d^2 L / df^2) J E^1/2) + b / 2

with E and b of the optimizer's next step (`ntkdiag.optimizer`), taken on trial with the gradient of
the loss on the examples that are trained on, and measured by the instrument of `ntkdiag.watch`: one
step has one margin, in training and afterwards, with the same interval. A network that normalizes
does so by the batch, as trained.

The kernel of a network that normalizes by running statistics is that of another function: where the
update rule is stated, such a network has its margin from here, too, as does one under a loss of the
user whose Hessian is too large to be formed; others have theirs from their kernel
(`stated_margin`).
"""

import math
from typing import TYPE_CHECKING, Any

import jax

from ntkdiag.descent import Descent
from ntkdiag.estimate import Estimate
from ntkdiag.jaxtools.cpu import Compiled, channels_last, compiler_options
from ntkdiag.losses.custom_loss import MOST_ROWS, CustomLoss
from ntkdiag.measuring.settings import Settings
from ntkdiag.measuring.stated_margin import PendingStability, Stability
from ntkdiag.models.functional import Functional
from ntkdiag.models.in_training import has_batch_statistics
from ntkdiag.monitor.instruments.margin import Margin
from ntkdiag.monitor.instruments.step import Norms
from ntkdiag.monitor.instruments.step import Optimizer as OptimizerInstrument
from ntkdiag.monitor.measure import Numbers, blank_memory, measure_point
from ntkdiag.monitor.measurement import Status
from ntkdiag.monitor.point import Point, as_optimizer
from ntkdiag.monitor.probe import Probe
from ntkdiag.optimizer.response import SENTENCES, OptimizerError, OptimizerStatus, objection
from ntkdiag.optimizer.saved_state import Optimizer, OptimizerState

if TYPE_CHECKING:
    import optax

NO_STATE = (
    "There is no optimizer state in the checkpoint: the margin is NaN. descent= states the update "
    "rule."
)
# A checkpoint can afford more products than a training step.
_INSTRUMENTS = (Margin(count=16, count_first=16), OptimizerInstrument(), Norms())


class TrainingMargins:
    """Margins of one model and one update rule, which are compiled once for all checkpoints."""

    @staticmethod
    def of(
        model: Functional, settings: Settings, outputs_of_one: tuple[int, ...]
    ) -> "TrainingMargins | None":
        """Those of a model; None where there is no rule, or its kernel tells the margin."""
        differs = _needs_products(settings, outputs_of_one) or _differs_in_training(model, settings)
        if settings.optimizer is None and (model.joint or not differs):
            return None
        return TrainingMargins(model, settings)

    def __init__(self, model: Functional, settings: Settings):
        import optax

        self._settings = settings
        optimizer = settings.optimizer
        # With a stated rule the curvature is that of gradient descent at a rate of 1.
        self._stated = optax.sgd(1.0) if optimizer is None else None
        self._probe = Probe(
            model,
            x=settings.x,
            y=settings.y,
            loss=settings.loss,
            optimizer=_as_optax(optimizer or optax.sgd(1.0)),
            n_train=settings.n_train,
        )
        shape = self._probe.fit(model.params)
        self._memory = blank_memory(self._probe, _INSTRUMENTS, shape)
        # XLA on CPU compiles some float32 reductions wrongly by default: these options are checked.
        self._program = Compiled(
            channels_last(self._measured), compiler_options(reduces=True, once=True)
        )

    def _measured(self, point: Point) -> Numbers:
        return measure_point(self._probe, _INSTRUMENTS, point, self._memory, 0, True)

    def begin(self, checkpoint: Functional, state: OptimizerState | None) -> PendingStability:
        """The margin at one checkpoint, by products in full precision, when this is called."""
        if self._stated is not None:
            opt_state = self._stated.init(checkpoint.params)
            point = Point(checkpoint.params, opt_state, model_state=checkpoint.fixed)
        elif state is None:
            return lambda: Stability.unknown(NO_STATE)
        else:
            point = self._point(checkpoint, state)
        try:
            with jax.default_matmul_precision("highest"):
                self._program.begin(point)
        except OptimizerError as error:
            reason = (
                "The optimizer's update cannot be called with gradient, state and parameters alone "
                f"({error}): the margin is NaN."
            )
            return lambda: Stability.unknown(reason)

        def stability() -> Stability:
            with jax.default_matmul_precision("highest"):
                found = self._program(point)
            if self._stated is None:
                return _of_optimizer(found, objection(point.opt_state, point.params))
            return self._of_stated(found)

        return stability

    def _point(self, checkpoint: Functional, state: OptimizerState) -> Point:
        params = state.as_held(checkpoint.params)
        return Point(params, state.state, model_state=checkpoint.fixed)

    def _of_stated(self, found: Numbers) -> Stability:
        """The margin of the rule that the settings state; without a rate the critical one alone."""
        descent = self._settings.descent or Descent()
        # sgd(1.0) is at its edge at a curvature of 2.
        ends = [2.0 * number for number in _numbers(found.estimates["margin"])]
        critical_rate = float(descent.critical_rate(ends[0]))
        if descent.learning_rate is None:
            return Stability(critical_rate, margin=None, learning_rate=None)
        margin, lower, upper = (float(descent.margin(end)) for end in ends)
        rate = float(descent.require_learning_rate())
        return Stability(critical_rate, margin, rate, _status(found, None), interval=(lower, upper))

    def update_norm(self, checkpoint: Functional, state: OptimizerState) -> float:
        """The size of the next update; NaN where the optimizer does not make it."""
        try:
            found = self._program(self._point(checkpoint, state))
        except OptimizerError:
            return math.nan
        return float(found.estimates["update_norm"].value)


def _of_optimizer(found: Numbers, why_not: str | None) -> Stability:
    """What a measurement says of the optimizer's next step."""
    margin, lower, upper = _numbers(found.estimates["margin"])
    learning_rate = float(found.estimates["learning_rate"].value)
    return Stability(
        critical_learning_rate=learning_rate / margin if margin > 0 else math.nan,
        margin=margin,
        learning_rate=learning_rate,
        status=_status(found, why_not),
        update_norm=float(found.estimates["update_norm"].value),
        interval=(lower, upper),
    )


def _status(found: Numbers, why_not: str | None) -> str:
    """What to know of the margin, or why there is none."""
    if int(found.status) == Status.NON_FINITE:
        return "Outputs or gradient are not finite: the margin is NaN."
    status = OptimizerStatus(int(found.estimates["optimizer_status"].value))
    if status == OptimizerStatus.REFUSED and why_not is not None:
        return why_not
    return "ok" if status == OptimizerStatus.RECOGNIZED else SENTENCES[status]


def _needs_products(settings: Settings, outputs_of_one: tuple[int, ...]) -> bool:
    """Whether the Hessian of a loss of the user has too many rows to be formed."""
    if settings.probes.train is None or not isinstance(settings.loss, CustomLoss):
        return False
    return settings.n_examples * math.prod(outputs_of_one) > MOST_ROWS


def _differs_in_training(model: Functional, settings: Settings) -> bool:
    """Whether the margin of a stated rule is not to be read off the kernel of a model."""
    is_asked = settings.descent is not None and settings.loss is not None
    is_known = is_asked and settings.probes.train is not None and settings.y is not None
    return is_known and has_batch_statistics(model)


def _as_optax(optimizer: Optimizer) -> "optax.GradientTransformationExtraArgs":
    import optax

    transform: Any = optimizer  # Optax names the arguments of both functions
    return as_optimizer(optax.GradientTransformation(transform.init, transform.update))


def _numbers(estimate: Estimate) -> tuple[float, float, float]:
    """A number and the ends of its interval."""
    return float(estimate.value), float(estimate.lower), float(estimate.upper)
