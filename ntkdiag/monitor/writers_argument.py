"""The argument `writers=`: writers, metric loggers of other libraries, names of either.

Scalars of a tracker go to the run that is active where `watch` or `Monitor` is called. It is looked
up there, because MLflow and Trackio know the active run only in the thread of the script.
"""

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax

from ntkdiag import errors, plugins
from ntkdiag.monitor.writers import Terminal, Values, Writer, scalars_of
from ntkdiag.runs.run_log import RunLog

# One or several of: a writer, its name, a logger of another library. They have no type in common.
WritersLike: TypeAlias = object
LogScalars: TypeAlias = Callable[[int, Mapping[str, float]], object]
_WHAT_FOR = "which writers= sends numbers to"


def read_writers(writers: WritersLike, run_log: RunLog | None = None) -> tuple[Writer, ...]:
    """The writers as a tuple, with that of `out=` at the end."""
    if isinstance(writers, str) or not isinstance(writers, Sequence):
        writers = (writers,)
    listed = [_read_writer(writer) for writer in writers]
    return tuple(listed) if run_log is None else (*listed, run_log)


class LoggerWriter:
    """Passes the scalars of each measurement to a logger, with the prefix `ntkdiag/`."""

    def __init__(self, log_scalars: LogScalars) -> None:
        self._log_scalars = log_scalars
        self._record: dict[str, Any] = {}

    def start(self, record: Mapping[str, Any]) -> None:
        """Note the names of the layers."""
        self._record = dict(record)

    def write(self, step: int, values: Values) -> None:
        """Log the scalars of one measurement."""
        scalars = scalars_of(values, self._record)
        self._log_scalars(step, {f"ntkdiag/{name}": number for name, number in scalars.items()})


def _read_writer(writer: object) -> Writer:
    if isinstance(writer, str):
        return _writer_of_name(writer)
    if isinstance(writer, Writer):
        return writer
    log_scalars = _log_scalars_of(writer)
    if log_scalars is not None:
        return LoggerWriter(log_scalars)
    raise errors.InvalidInputError(
        argument="writers=...",
        expected="names of writers, or objects with a method write(step, values), "
        "write_scalars(step, scalars), log(scalars, step=...) or add_scalar(name, number, step)",
        got=f"a {type(writer).__name__}",
        do="ntkdiag.monitor has InMemory(), Terminal() and RunLog(folder).",
    )


def _writer_of_name(name: str) -> Writer:
    if name == "terminal":
        return Terminal()
    if name not in _TRACKERS:
        raise errors.InvalidInputError(
            argument="writers=...",
            expected=f"the name of a writer ({', '.join(sorted({'terminal', *_TRACKERS}))}), or a "
            "writer",
            got=repr(name),
            do="For a run directory pass out=.",
        )
    # Of the processes of one JAX program the first one writes; the others need no active run.
    if jax.process_index() != 0:
        return LoggerWriter(lambda step, scalars: None)
    return LoggerWriter(_TRACKERS[name]())


def _log_scalars_of(logger: Any) -> LogScalars | None:
    """How scalars are logged to an object of another library; None where it is no logger."""
    write_scalars = getattr(logger, "write_scalars", None)
    if callable(write_scalars):
        return write_scalars
    log = getattr(logger, "log", None)
    if callable(log):
        return lambda step, scalars: log(scalars, step=step)
    return _log_to_events(logger) if callable(getattr(logger, "add_scalar", None)) else None


def _log_to_wandb() -> LogScalars:
    """Log to `wandb.run`, with the step of training as the x-axis of its own metrics."""
    run = _active_run("wandb", lambda wandb: wandb.run, "wandb.init()")
    run.define_metric("ntkdiag/step", hidden=True)
    run.define_metric("ntkdiag/*", step_metric="ntkdiag/step")
    last_row, last_step = -1, -1

    def log_scalars(step: int, scalars: Mapping[str, float]) -> None:
        """Add to the current row of the script, so that the script counts the steps of the run."""
        nonlocal last_row, last_step
        # A row holds one value of each metric: end the one that has those of an earlier step.
        if last_row == run.step and last_step != step:
            run.log({}, commit=True)
        run.log({"ntkdiag/step": step, **scalars}, commit=False)
        last_row, last_step = run.step, step

    return log_scalars


def _log_to_mlflow() -> LogScalars:
    """Log to the active run of MLflow, under names that MLflow allows."""
    run = _active_run("mlflow", lambda mlflow: mlflow.active_run(), "mlflow.start_run()")
    mlflow = plugins.imported("mlflow", _WHAT_FOR, "mlflow")

    def log_scalars(step: int, scalars: Mapping[str, float]) -> None:
        metrics = {re.sub(r"[^/\w.\- ]", "_", name): number for name, number in scalars.items()}
        mlflow.log_metrics(metrics, step=step, run_id=run.info.run_id)

    return log_scalars


def _log_to_trackio() -> LogScalars:
    run = _active_run(
        "trackio", lambda trackio: trackio.context_vars.current_run.get(), "trackio.init(...)"
    )
    return lambda step, scalars: run.log(dict(scalars), step=step)


def _log_to_tensorboard() -> LogScalars:
    """Log to event files in a new folder below ``runs``."""
    # Writers of one second would share a folder, of which TensorBoard drops steps that come twice.
    comment = f"_{uuid.uuid4().hex[:8]}"
    tensorboard = plugins.imported("tensorboardX", _WHAT_FOR, "tensorboardX")
    return _log_to_events(tensorboard.SummaryWriter(comment=comment, flush_secs=1))


def _log_to_events(events: Any) -> LogScalars:
    """Log to a SummaryWriter, and have it flush: no writer closes it."""

    def log_scalars(step: int, scalars: Mapping[str, float]) -> None:
        for name, number in scalars.items():
            events.add_scalar(name, number, step)
        events.flush()

    return log_scalars


def _log_to_jax_monitoring() -> LogScalars:
    """Record for the listeners of `jax.monitoring`, as metrax and Tunix have them."""
    record = jax.monitoring.record_scalar
    return lambda step, scalars: [record(name, n, step=step) for name, n in scalars.items()]


_TRACKERS: dict[str, Callable[[], LogScalars]] = {
    "jax_monitoring": _log_to_jax_monitoring,
    "mlflow": _log_to_mlflow,
    "tensorboard": _log_to_tensorboard,
    "trackio": _log_to_trackio,
    "wandb": _log_to_wandb,
}


def _active_run(package: str, look_up: Callable[[Any], Any], begin: str) -> Any:
    run = look_up(plugins.imported(package, _WHAT_FOR, package))
    if run is None:
        raise errors.InvalidInputError(
            argument="writers=...",
            expected=f"an active run of {package}",
            got="none",
            do=f"Call {begin} first.",
        )
    return run
