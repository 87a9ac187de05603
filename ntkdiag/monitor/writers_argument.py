"""What users pass as `writers=`: writers, metric loggers of other libraries, names of either."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ntkdiag import errors
from ntkdiag.monitor.logger_writer import writer_of_logger
from ntkdiag.monitor.run_log import RunLog
from ntkdiag.monitor.trackers import TRACKERS, tracker_writer
from ntkdiag.monitor.writers import Terminal, Writer

# One or several of: a writer, its name, a logger of another library. They have no type in common.
WritersLike: TypeAlias = object

_BUILT_IN: dict[str, Callable[[], Writer]] = {
    "terminal": Terminal,
}


def read_writers(writers: WritersLike, run_log: RunLog | None = None) -> tuple[Writer, ...]:
    """The writers as a tuple, with that of `out=` at the end."""
    if isinstance(writers, str) or not isinstance(writers, Sequence):
        writers = (writers,)
    listed = [_read_writer(writer) for writer in writers]
    return tuple(listed) if run_log is None else (*listed, run_log)


def _read_writer(writer: object) -> Writer:
    """One writer."""
    if isinstance(writer, str):
        return _writer_of_name(writer)
    # A class has the methods, too, and is no writer: it has to be called first.
    if not isinstance(writer, type):
        if isinstance(writer, Writer) and callable(writer.write):
            return writer
        writer_to_logger = writer_of_logger(writer)
        if writer_to_logger is not None:
            return writer_to_logger
    raise errors.InvalidInputError(
        argument="writers=...",
        expected="names of writers, or objects with a method write(step, values), "
        "write_scalars(step, scalars), log(scalars, step=...) or add_scalar(name, number, step)",
        got=_described(writer),
        do="ntkdiag.monitor has JsonLines(path), Terminal() and InMemory().",
    )


def _described(value: object) -> str:
    """What a value is, for a message."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _writer_of_name(name: str) -> Writer:
    """The writer that has a name, made with its defaults."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    if name in TRACKERS:
        return tracker_writer(name)
    names = sorted({*_BUILT_IN, *TRACKERS})
    raise errors.InvalidInputError(
        argument="writers=...",
        expected=f"the name of a writer ({', '.join(names)}), or a writer",
        got=repr(name),
        do="A file is JsonLines(path), a run directory out=.",
    )
