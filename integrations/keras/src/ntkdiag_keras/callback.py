"""The measurements of `ntkdiag.Monitor` during `Model.fit`.

While it trains, Keras on JAX keeps the values of a model to itself, and gives the buffers of the
variables away. `Callback.model` puts the current values into the variables; that costs something,
and is done at steps that are measured only.
"""

import math
import warnings
from typing import Any

import keras
import numpy as np

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor.schedule import as_schedule
from ntkdiag_keras.adapter import functionalize
from ntkdiag_keras.optimizers import as_optax, objection, state_of, unknown
from ntkdiag_keras.variables import variables_of

# Of the numbers, those that stand in the logs of an epoch, as "ntk_margin" beside the names of
# Keras: a progress bar shows them all.
_IN_LOGS = ("margin", "trace", "participation_ratio", "drift", "alignment")


class NTKCallback(keras.callbacks.Callback):
    """Measures the neural tangent kernel of a model on a probe batch while `fit` trains it.

        watch = NTKCallback(train=(x[:128], y[:128]), loss="cross_entropy", out="run")
        history = model.fit(x, y, epochs=10, callbacks=[watch])
        history.history["ntk_margin"]

    The margin is that of the compiled optimizer, with the rate, momentum and second moments of its
    own variables and its weight decay. Where it is not known it is NaN, and `reason` says why.
    Running statistics are those of the step. A model with BatchNormalization and without dropout
    is measured as it trains, by the statistics of the probe.

    In the logs of an epoch, and so in `History`, stand `ntk_margin`, `ntk_trace`,
    `ntk_participation_ratio`, `ntk_drift` and `ntk_alignment`, as far as they are measured: those
    of the last measurement in the epoch, NaN where there was none. Everything else goes to the
    writers and into `out`. Let `EarlyStopping` and the like come after this callback.

    Cost: that of `ntkdiag.Monitor`; at steps that are measured, what `Callback.model` costs.

    Args:
        every: "epoch": before the first step and at the end of every epoch. Or a number of steps,
            or a function of the step; a step is a batch. With `steps_per_execution` only multiples
            of it are seen.
        output: Selects of what the model returns, as for `ntkdiag.functionalize`;
            `log_probabilities` for a model that ends with a softmax.
        mode: ``"eval"`` or ``"train"``, as for `functionalize`.
        **options: Those of `ntkdiag.Monitor`: `train`, `held_out`, `loss`, `out`, `writers`,
            `instruments` and others, but no `optimizer`. `loss` is the compiled one in the words of
            ntkdiag; without it there are no numbers about stability.

    Attributes:
        monitor: The `ntkdiag.Monitor`, None before `fit`; `monitor.last` is the last measurement.
        reason: Why there is no margin, as a sentence; empty where there is one.

    Raises:
        InvalidInputError: An argument is out of range; from `fit` those of `functionalize` and
            `ntkdiag.Monitor`.
    """

    @errors.public
    def __init__(
        self, *, every: Any = "epoch", output: Any = None, mode: str = "eval", **options: Any
    ) -> None:
        super().__init__()
        self.monitor: ntkdiag.Monitor | None = None
        self.reason = ""
        self._is_by_epoch = every == "epoch"
        self._due = as_schedule(1 if self._is_by_epoch else every)
        self._of_model = {"output": output, "mode": mode}
        self._of_monitor = {**options, "every": 1}
        self._optimizer: Any = None  # the one that the monitor was made for
        self._step = 0
        self._first_step = 0  # of this epoch
        self._last_measured = -1

    def on_train_begin(self, logs: Any = None) -> None:
        """Make the monitor, unless there is one for this optimizer, and measure."""
        model: Any = self.model
        if model.optimizer is not self._optimizer:
            self._begin(model)
        n_micro_steps = self._optimizer.gradient_accumulation_steps or 1
        self._step = int(self._optimizer.iterations) * n_micro_steps
        self._measure_if_due()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count the batches of this epoch from here."""
        self._first_step = self._step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Measure at the steps of the schedule."""
        # One call stands for several batches with `steps_per_execution`.
        self._step = self._first_step + batch + 1
        if not self._is_by_epoch:
            self._measure_if_due()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Measure if that is asked for, and put numbers into the logs."""
        if self._is_by_epoch:
            self._measure_if_due()
        last = None if self.monitor is None else self.monitor.last
        if last is None or logs is None:
            return
        is_of_this_epoch = int(last.step) > self._first_step
        for name in _IN_LOGS:
            if name in last.estimates:
                value = float(np.asarray(last.estimates[name].value))
                logs[f"ntk_{name}"] = value if is_of_this_epoch else math.nan

    def on_train_end(self, logs: Any = None) -> None:
        """Have the writers write what is left."""
        if self.monitor is not None:
            self.monitor.close()

    def _begin(self, model: Any) -> None:
        """Make the monitor of a model with its compiled optimizer."""
        weights, state = variables_of(model)
        self._variables = weights | state
        path_of = {id(variable): path for path, variable in weights.items()}
        self._trained = [path_of[id(variable)] for variable in model.trainable_variables]
        self.reason = objection(model.optimizer, model.trainable_variables)
        self._transform = unknown() if self.reason else as_optax(model.optimizer)
        fn = functionalize(model, **self._of_model)
        self.monitor = ntkdiag.Monitor(fn, optimizer=self._transform, **self._of_monitor)
        self._optimizer = model.optimizer
        self._last_measured = -1
        if self.reason:
            warnings.warn(f"NTKCallback: there is no margin. {self.reason}", stacklevel=2)

    def _measure_if_due(self) -> None:
        """Measure at a step of the schedule that was not measured yet."""
        if self.monitor is None or self._step == self._last_measured or not self._due(self._step):
            return
        self._last_measured = self._step
        _ = self.model  # puts the current values into the variables
        values = {path: variable.value for path, variable in self._variables.items()}
        params = {path: values.pop(path) for path in self._trained}
        opt_state = self._transform.init(params)
        if not self.reason:
            opt_state = state_of(self._optimizer, self._transform, params)
        self.monitor(self._step, params, opt_state, model_state=values)
