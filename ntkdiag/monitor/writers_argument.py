"""What users pass as `writers=`: writers, metric loggers of other libraries, names of either.

A name is that of a writer here or of an object that an installed distribution declares, called
without arguments:

    [project.entry-points."ntkdiag.writers"]
    tensorboard = "ntkdiag_tensorboard:TensorBoardWriter"
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ntkdiag import errors, plugins
from ntkdiag.monitor.jax_monitoring import JaxMonitoring
from ntkdiag.monitor.logger_writer import writer_of_logger
from ntkdiag.monitor.run_log import RunLog
from ntkdiag.monitor.writers import Terminal, Writer

# One or several of: a writer, its name, a logger of another library. They have no type in common.
WritersLike: TypeAlias = object

GROUP = "ntkdiag.writers"
_BUILT_IN: dict[str, Callable[[], Writer]] = {
    "jax_monitoring": JaxMonitoring,
    "terminal": Terminal,
}
# Trackers with an integration of ours.
_INTEGRATED = ("mlflow", "tensorboard", "trackio", "wandb")


def read_writers(writers: WritersLike, run_log: RunLog | None = None) -> tuple[Writer, ...]:
    """The writers as a tuple, with that of `out=` at the end.

    A writer to a tracker remembers its run in the run directory of `out=`.

    Raises an InvalidInputError for what cannot write, and a MissingDependencyError for the name of
    a tracker whose writer is not installed.
    """
    if isinstance(writers, str) or not isinstance(writers, Sequence):
        writers = (writers,)
    listed = [_read_writer(writer) for writer in writers]
    if run_log is None:
        return tuple(listed)
    for writer in listed:
        remember_in = getattr(writer, "remember_in", None)
        if remember_in is not None:
            remember_in(run_log.stream.path.parent)
    return (*listed, run_log)


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
        "write_scalars(step, scalars) or log(scalars, step=...)",
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
    make = plugins.offered(GROUP, name)
    if make is not None:
        return make()
    if name in _INTEGRATED:
        raise errors.MissingDependencyError(
            argument="writers=...",
            expected=f"an installed writer to {name}",
            got="no such writer",
            do=plugins.how_to_install(name),
        )
    names = sorted({*_BUILT_IN, *_INTEGRATED, *plugins.names_offered(GROUP)})
    raise errors.InvalidInputError(
        argument="writers=...",
        expected=f"the name of a writer ({', '.join(names)}), or a writer",
        got=repr(name),
        do="A file is JsonLines(path), a run directory out=.",
    )
