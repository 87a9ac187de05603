"""Metric loggers of other libraries, written to as they are.

Taken is whatever has `write_scalars(step, scalars)`, as the writers of clu, `log(scalars,
step=...)`, as the runs of many trackers and these modules themselves, or `add_scalar(name, number,
step)`, as the SummaryWriter of tensorboardX and PyTorch.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ntkdiag.monitor.flat_scalars import scalars_of
from ntkdiag.monitor.writers import Values

LogScalars: TypeAlias = Callable[[int, Mapping[str, float]], object]


class LoggerWriter:
    """Hands the scalars of each measurement to a logger, under names that begin with `ntkdiag/`."""

    def __init__(self, log_scalars: LogScalars, logger_name: str) -> None:
        self._log_scalars = log_scalars
        self._record: dict[str, Any] = {}
        self.logger_name = logger_name

    def start(self, record: Mapping[str, Any]) -> None:
        """Note the names of the layers."""
        self._record = dict(record)

    def write(self, step: int, values: Values) -> None:
        """Log the scalars of one measurement."""
        scalars = scalars_of(values, self._record)
        self._log_scalars(step, {f"ntkdiag/{name}": number for name, number in scalars.items()})


def writer_of_logger(logger: object) -> LoggerWriter | None:
    """The writer to a logger of another library; None where the object is no such logger."""
    name = getattr(logger, "__name__", type(logger).__name__)
    write_scalars = getattr(logger, "write_scalars", None)
    if callable(write_scalars):
        return LoggerWriter(write_scalars, name)
    log = getattr(logger, "log", None)
    # Not every `log` is of numbers: that of Python's own loggers has no step.
    if callable(log) and _takes_step(log):
        return LoggerWriter(lambda step, scalars: log(scalars, step=step), name)
    if callable(getattr(logger, "add_scalar", None)):
        return LoggerWriter(functools.partial(add_scalars, logger), name)
    return None


def add_scalars(events: Any, step: int, scalars: Mapping[str, float]) -> None:
    """Write to an event file of TensorBoard, and to the disk at once: no writer here closes it."""
    for name, number in scalars.items():
        events.add_scalar(name, number, step)
    events.flush()


def _takes_step(log: Callable[..., object]) -> bool:
    """Whether a method has an argument `step`."""
    try:
        return "step" in inspect.signature(log).parameters
    except (TypeError, ValueError):  # some compiled callables have no signature
        return False
