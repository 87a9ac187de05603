"""The measurements of `ntkdiag.Monitor` during `Model.fit`.

While it trains, Keras on JAX keeps the values of a model to itself, and gives the buffers of the
variables away. `Callback.model` puts the current values into the variables; that costs something,
and is done at steps that are measured only.
"""

import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import optax
from jaxtyping import PyTree

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor.schedule import as_schedule
from ntkdiag_keras.adapter import functionalize
from ntkdiag_keras.backend import require_jax
from ntkdiag_keras.losses import compiled_loss
from ntkdiag_keras.optimizers import as_optax, inner_optimizer, objection, state_of
from ntkdiag_keras.variables import nested, variables_of

# Of the numbers, those that stand in the logs of an epoch, as "ntk_margin" beside the names of
# Keras: a progress bar shows them all.
_IN_LOGS = ("margin", "trace", "participation_ratio", "drift", "alignment")


class NTKCallback(keras.callbacks.Callback):
    """Measures the neural tangent kernel of a model on a probe batch while `fit` trains it.

        watch = NTKCallback(train=(x[:128], y[:128]), out="run")
        history = model.fit(x, y, epochs=10, callbacks=[watch])
        history.history["ntk_margin"]

    The margin is that of the compiled optimizer, with the rate, momentum and second moments of its
    own variables and its weight decay. Where it is not known it is NaN, and `reason` says why.
    Running statistics are those of the step; models with BatchNormalization are measured as they
    train, by the statistics of the probe. Whatever fails is said in one warning: training goes on.

    In the logs of an epoch, and so in `History`, stand `ntk_margin`, `ntk_trace`,
    `ntk_participation_ratio`, `ntk_drift` and `ntk_alignment`, as far as they are measured: those
    of the last measurement in the epoch, NaN where there was none. Everything else goes to the
    writers and into `out`. Let `EarlyStopping` and the like come after this callback.

    Cost: that of `ntkdiag.Monitor`; a copy of the variables; at steps that are measured, what
    `Callback.model` costs.

    Args:
        train: Examples of the training set with their labels, (x, y), as `fit` takes them; 64 to
            256 are enough.
        held_out: Examples that are not trained on, with their labels.
        loss: As for `ntkdiag.Monitor`. None: the compiled loss, if it is the mean squared error or
            a cross-entropy of logits; for others there are no numbers about stability, and `reason`
            says why.
        every: "epoch": before the first step and at the end of every epoch, however long that
            takes. Or a number of steps, or a schedule of the step; a step is a batch. With
            `steps_per_execution` only multiples of it are seen.
        output: Selects of what the model returns, as for `ntkdiag.functionalize`;
            `log_probabilities` for a model that ends with a softmax.
        **options: Those of `ntkdiag.Monitor`: `out`, `writers`, `instruments` and others.

    Attributes:
        monitor: The `ntkdiag.Monitor`, None before `fit`; `monitor.last` is the last measurement.
        reason: Why there is no margin, as a sentence; empty where there is one.

    Raises:
        InvalidInputError: An argument is out of range, or Keras does not run on JAX.
    """

    @errors.public
    def __init__(
        self,
        train: tuple[PyTree, PyTree] | None = None,
        *,
        held_out: tuple[PyTree, PyTree] | None = None,
        loss: Any = None,
        every: Any = "epoch",
        output: Any = None,
        **options: Any,
    ) -> None:
        require_jax()
        super().__init__()
        if "optimizer" in options:
            raise errors.InvalidInputError(
                argument="optimizer=...",
                expected="no optimizer, because that of model.compile is read",
                got=f"a {type(options['optimizer']).__name__}",
                do="Leave it out.",
            )
        self.monitor: ntkdiag.Monitor | None = None
        self.reason = ""
        self._is_by_epoch = every == "epoch"
        if self._is_by_epoch:
            every = _at_epochs
        self._due: Callable[[int], Any] = as_schedule(every)
        self._loss = loss
        self._output = output
        self._options = {"train": train, "held_out": held_out, "every": every, **options}
        self._watched: tuple[Any, ...] = ()  # what the monitor was made for
        self._step = 0
        self._batches = 0  # of this epoch
        self._last_measured = -1
        self._has_warned = False
        # A monitor of nothing refuses what no monitor takes, before any training.
        stand_ins = {"loss": loss or "mse", "optimizer": optax.identity()}
        without_files = {"out": None, "writers": ()}
        ntkdiag.Monitor(_nothing, **{**self._options, **stand_ins, **without_files})

    def on_train_begin(self, logs: Any = None) -> None:
        """Make the monitor, and measure before the first step."""
        self._safely(self._begin)
        self._safely(self._measure_if_due)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count batches anew."""
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Measure at the steps of the schedule."""
        # One call stands for several batches with `steps_per_execution`.
        self._step += batch + 1 - self._batches
        self._batches = batch + 1
        if not self._is_by_epoch:
            self._safely(self._measure_if_due)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Measure if that is asked for, and put numbers into the logs."""
        if self._is_by_epoch:
            self._safely(self._measure_if_due)
        if logs is not None:
            self._safely(lambda: logs.update(self._numbers_of_epoch()))

    def on_train_end(self, logs: Any = None) -> None:
        """Have the writers write what is left."""
        if self.monitor is not None:
            self.monitor.close()

    def _begin(self) -> None:
        """Make a monitor, unless there is one for this model as it is compiled."""
        model: Any = self.model
        optimizer = inner_optimizer(model.optimizer)
        n_micro_steps = optimizer.gradient_accumulation_steps or 1
        self._step = int(optimizer.iterations) * n_micro_steps
        weights, state = variables_of(model)
        by_id = {id(variable): path for path, variable in weights.items()}
        paths = tuple(by_id[id(variable)] for variable in model.trainable_variables)
        watched = (model, optimizer, getattr(model, "loss", None), paths)
        if self.monitor is not None and all(map(_is_same, watched, self._watched)):
            return

        self.monitor = None
        loss = self._loss
        self.reason = ""
        if loss is None:
            loss, self.reason = compiled_loss(model, self._output)
        why_not = objection(optimizer, model.trainable_variables)
        self._transform = as_optax(optimizer, why_not)
        options = {**self._options, "optimizer": self._transform}
        self.reason = self.reason or why_not
        fn = functionalize(model, output=self._output)
        self.monitor = ntkdiag.Monitor(fn, loss=loss, **options)
        self._watched = watched
        self._last_measured = -1
        self._trainable = dict(zip(paths, model.trainable_variables, strict=True))
        self._held = state
        if self.reason:
            _warn(f"NTKCallback: there is no margin. {self.reason}")

    def _measure_if_due(self) -> None:
        """Measure at a step of the schedule that was not measured yet."""
        if self.monitor is None or self._step == self._last_measured:
            return
        if not self._due(self._step):
            return
        self._last_measured = self._step
        model: Any = self.model  # puts the current values into the variables
        optimizer = inner_optimizer(model.optimizer)
        params = {path: variable.value for path, variable in self._trainable.items()}
        self.monitor(
            self._step,
            nested(params),
            state_of(optimizer, self._transform, params),
            model_state={path: variable.value for path, variable in self._held.items()},
        )

    def _numbers_of_epoch(self) -> dict[str, float]:
        """The numbers for the logs."""
        last = None if self.monitor is None else self.monitor.last
        if last is None:
            return {}
        is_of_this_epoch = int(last.step) > self._step - self._batches
        numbers = {}
        for name in _IN_LOGS:
            if name in last.estimates:
                value = float(np.asarray(last.estimates[name].value))
                numbers[f"ntk_{name}"] = value if is_of_this_epoch else math.nan
        return numbers

    def _safely(self, do: Callable[[], None]) -> None:
        """Do something that must not end the training; say once what went wrong."""
        try:
            do()
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                _warn(f"NTKCallback: {error} This is said once; training goes on.")


def _at_epochs(step: int) -> bool:
    """The schedule of a callback that asks at the right steps only."""
    return True


def _nothing(params: PyTree, x: PyTree) -> PyTree:
    """A function for a monitor that measures nothing."""
    return x


def _is_same(one: object, other: object) -> bool:
    """Whether these are one object, or tuples that are equal."""
    return one is other or (isinstance(one, tuple) and one == other)


def _warn(text: str) -> None:
    """Warn without raising, where warnings are errors, too."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:
        logging.getLogger("ntkdiag").warning(text)
