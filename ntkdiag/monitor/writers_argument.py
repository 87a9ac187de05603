"""What users pass as `writers=`: writers, metric loggers of other libraries, names of either."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax

from ntkdiag import errors
from ntkdiag.monitor.run_log import RunLog
from ntkdiag.monitor.trackers import TRACKERS, LogScalars, log_to_events
from ntkdiag.monitor.writers import Terminal, Values, Writer, scalars_of

# One or several of: a writer, its name, a logger of another library. They have no type in common.
WritersLike: TypeAlias = object


def read_writers(writers: WritersLike, run_log: RunLog | None = None) -> tuple[Writer, ...]:
    """The writers as a tuple, with that of `out=` at the end."""
    if isinstance(writers, str) or not isinstance(writers, Sequence):
        writers = (writers,)
    listed = [_read_writer(writer) for writer in writers]
    return tuple(listed) if run_log is None else (*listed, run_log)


class LoggerWriter:
    """Hands the scalars of each measurement to a logger, under names that begin with `ntkdiag/`."""

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
    """One writer."""
    if isinstance(writer, str):
        return _writer_of_name(writer)
    # A class has the methods, too, and is no writer: it has to be called first.
    if not isinstance(writer, type):
        if isinstance(writer, Writer) and callable(writer.write):
            return writer
        log_scalars = _log_scalars_of(writer)
        if log_scalars is not None:
            return LoggerWriter(log_scalars)
    name = writer.__name__ if isinstance(writer, type) else type(writer).__name__
    raise errors.InvalidInputError(
        argument="writers=...",
        expected="names of writers, or objects with a method write(step, values), "
        "write_scalars(step, scalars), log(scalars, step=...) or add_scalar(name, number, step)",
        got=f"the class {name}" if isinstance(writer, type) else f"a {name}",
        do="ntkdiag.monitor has InMemory(), Terminal() and RunLog(folder).",
    )


def _writer_of_name(name: str) -> Writer:
    """The writer that has a name."""
    if name == "terminal":
        return Terminal()
    if name not in TRACKERS:
        raise errors.InvalidInputError(
            argument="writers=...",
            expected=f"the name of a writer ({', '.join(sorted({'terminal', *TRACKERS}))}), or a "
            "writer",
            got=repr(name),
            do="A run directory is out=.",
        )
    # Of the processes of one JAX program the first one writes; the others need no active run.
    if jax.process_index() != 0:
        return LoggerWriter(lambda step, scalars: None)
    return LoggerWriter(TRACKERS[name]())


def _log_scalars_of(logger: Any) -> LogScalars | None:
    """How scalars are logged to an object of another library; None where it is no logger.

    Loggers are the writers of clu, the runs of trackers and the modules themselves, and the
    SummaryWriter of tensorboardX and PyTorch.
    """
    write_scalars = getattr(logger, "write_scalars", None)
    if callable(write_scalars):
        return write_scalars
    log = getattr(logger, "log", None)
    if callable(log) and _takes_step(log):
        return lambda step, scalars: log(scalars, step=step)
    return log_to_events(logger) if callable(getattr(logger, "add_scalar", None)) else None


def _takes_step(log: Callable[..., object]) -> bool:
    """Whether a method has an argument `step`: that of Python's own loggers has none."""
    try:
        return "step" in inspect.signature(log).parameters
    except (TypeError, ValueError):  # some compiled callables have no signature
        return False
