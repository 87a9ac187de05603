"""The experiment trackers that `writers=` takes by name.

Scalars go to the run that is active where the watch or the monitor is made. Its run is looked up
there, because MLflow and Trackio tell the active run to the thread of the script only, and writers
are called on another one.
"""

import functools
import importlib
import re
import uuid
from collections.abc import Callable, Mapping
from types import ModuleType

import jax

from ntkdiag import errors
from ntkdiag.monitor.logger_writer import LoggerWriter, LogScalars, add_scalars


def tracker_writer(name: str) -> LoggerWriter:
    """The writer to a tracker."""
    # Of the processes of one JAX program the first one writes; the others need no active run.
    if jax.process_index() != 0:
        return LoggerWriter(lambda step, scalars: None, name)
    return LoggerWriter(TRACKERS[name](), name)


def _wandb() -> LogScalars:
    """Log to `wandb.run`, with the step of training as the x-axis of its own metrics."""
    run = _imported("wandb").run
    if run is None:
        raise _no_active_run("Weights & Biases", "wandb.init()")
    run.define_metric("ntkdiag/step", hidden=True)
    run.define_metric("ntkdiag/*", step_metric="ntkdiag/step")
    last_row, last_step = -1, -1

    def log_scalars(step: int, scalars: Mapping[str, float]) -> None:
        """Add to the row that the script is at, so that the script counts the steps of the run."""
        nonlocal last_row, last_step
        # A row holds one value of each metric: end the one that has those of an earlier step.
        if last_row == run.step and last_step != step:
            run.log({}, commit=True)
        run.log({"ntkdiag/step": step, **scalars}, commit=False)
        last_row, last_step = run.step, step

    return log_scalars


def _mlflow() -> LogScalars:
    """Log to the active run of MLflow."""
    mlflow = _imported("mlflow")
    run = mlflow.active_run()
    if run is None:
        raise _no_active_run("MLflow", "mlflow.start_run()")

    def log_scalars(step: int, scalars: Mapping[str, float]) -> None:
        """Log under names that MLflow allows."""
        metrics = {re.sub(r"[^/\w.\- ]", "_", name): number for name, number in scalars.items()}
        mlflow.log_metrics(metrics, step=step, run_id=run.info.run_id)

    return log_scalars


def _trackio() -> LogScalars:
    """Log to the run that `trackio.init` has begun."""
    run = _imported("trackio").context_vars.current_run.get()
    if run is None:
        raise _no_active_run("Trackio", "trackio.init(project=...)")
    return lambda step, scalars: run.log(dict(scalars), step=step)


def _tensorboard() -> LogScalars:
    """Log to event files in a new folder below ``runs``."""
    # Two files of one second would have the same name.
    suffix = f".{uuid.uuid4().hex[:8]}"
    events = _imported("tensorboardX").SummaryWriter(filename_suffix=suffix)
    return functools.partial(add_scalars, events)


def _jax_monitoring() -> LogScalars:
    """Record for the listeners of `jax.monitoring`, as metrax and Tunix have them."""

    def log_scalars(step: int, scalars: Mapping[str, float]) -> None:
        for name, number in scalars.items():
            jax.monitoring.record_scalar(name, number, step=step)

    return log_scalars


TRACKERS: dict[str, Callable[[], LogScalars]] = {
    "jax_monitoring": _jax_monitoring,
    "mlflow": _mlflow,
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "wandb": _wandb,
}


def _imported(package: str) -> ModuleType:
    """The library of a tracker."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise errors.MissingDependencyError(
            argument="writers=...",
            expected=f"an installed {package}",
            got=f"{type(error).__name__}: {error}",
            do=f'Run "pip install {package}".',
        ) from error


def _no_active_run(tracker: str, call: str) -> errors.InvalidInputError:
    """The error for a tracker without an active run."""
    return errors.InvalidInputError(
        argument="writers=...",
        expected=f"an active run of {tracker}",
        got="none",
        do=f"Call {call} first.",
    )
