"""The experiment trackers that `writers=` takes by name.

Scalars go to the run that is active where `watch` or `Monitor` is called. It is looked up there:
MLflow and Trackio know the active run of the thread of the script alone, not of the writers'.
"""

import importlib
import re
import uuid
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeAlias

import jax

from ntkdiag import errors

LogScalars: TypeAlias = Callable[[int, Mapping[str, float]], object]


def log_to_wandb() -> LogScalars:
    """Log to `wandb.run`, with the step of training as the x-axis of its own metrics."""
    run = _active_run("wandb", lambda wandb: wandb.run, "wandb.init()")
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


def log_to_mlflow() -> LogScalars:
    """Log to the active run of MLflow, under names that MLflow allows."""
    run = _active_run("mlflow", lambda mlflow: mlflow.active_run(), "mlflow.start_run()")
    mlflow = _imported("mlflow")

    def log_scalars(step: int, scalars: Mapping[str, float]) -> None:
        metrics = {re.sub(r"[^/\w.\- ]", "_", name): number for name, number in scalars.items()}
        mlflow.log_metrics(metrics, step=step, run_id=run.info.run_id)

    return log_scalars


def log_to_trackio() -> LogScalars:
    """Log to the run that `trackio.init` began."""
    run = _active_run(
        "trackio", lambda trackio: trackio.context_vars.current_run.get(), "trackio.init(...)"
    )
    return lambda step, scalars: run.log(dict(scalars), step=step)


def log_to_tensorboard() -> LogScalars:
    """Log to event files in a new folder below ``runs``."""
    # Writers of one second would share a folder, of which TensorBoard drops steps that come twice.
    comment = f"_{uuid.uuid4().hex[:8]}"
    events = _imported("tensorboardX").SummaryWriter(comment=comment, flush_secs=1)
    return log_to_events(events)


def log_to_events(events: Any) -> LogScalars:
    """Log to a SummaryWriter, and have it flush: no writer closes it."""

    def log_scalars(step: int, scalars: Mapping[str, float]) -> None:
        for name, number in scalars.items():
            events.add_scalar(name, number, step)
        events.flush()

    return log_scalars


def log_to_jax_monitoring() -> LogScalars:
    """Record for the listeners of `jax.monitoring`, as metrax and Tunix have them."""

    def log_scalars(step: int, scalars: Mapping[str, float]) -> None:
        for name, number in scalars.items():
            jax.monitoring.record_scalar(name, number, step=step)

    return log_scalars


TRACKERS: dict[str, Callable[[], LogScalars]] = {
    "jax_monitoring": log_to_jax_monitoring,
    "mlflow": log_to_mlflow,
    "tensorboard": log_to_tensorboard,
    "trackio": log_to_trackio,
    "wandb": log_to_wandb,
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


def _active_run(package: str, look_up: Callable[[Any], Any], begin: str) -> Any:
    """The active run of a tracker."""
    run = look_up(_imported(package))
    if run is None:
        raise errors.InvalidInputError(
            argument="writers=...",
            expected=f"an active run of {package}",
            got="none",
            do=f"Call {begin} first.",
        )
    return run
