"""A call that all processes of a program make, of which the first one alone writes.

The first process reports what it found in its files, or why it failed, and does not wait. The
others wait for that word, so that an error of the first process is one of all, and none is
missing at the next collective operation.
"""

import collections
import contextlib
import functools
import itertools
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec

import jax

from ntkdiag import errors
from ntkdiag.jaxtools.tracing import can_hear_processes, hear_of_process, say_to_processes
from ntkdiag.path_argument import as_path

P = ParamSpec("P")

PATIENCE = 600.0  # seconds that the others wait for a word
_SLICE = 2.0  # seconds after which a wait may be interrupted
# The calls of one name are counted, in all processes alike.
_counts: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)


class SharedCall:
    """Messages of the first process to the others during one call, in order."""

    def __init__(self, name: str) -> None:
        self.is_writer = jax.process_index() == 0
        self._has_others = jax.process_count() > 1 and can_hear_processes()
        self._name = f"ntkdiag/{name}/{next(_counts[name])}"
        self._words = itertools.count()

    def say(self, word: Any, error: str = "") -> None:
        """Tell the others JSON values, or an error by the name of its class and its text."""
        if self.is_writer and self._has_others:
            key = f"{self._name}/{next(self._words)}"
            say_to_processes(key, json.dumps({"word": word, "error": error}))

    def hear(self, default: Any = None) -> Any:
        """The next word of the first process; the default where there is no way to hear it."""
        if not self._has_others:
            return default
        key, end = f"{self._name}/{next(self._words)}", time.monotonic() + PATIENCE
        got, text = f"nothing for {PATIENCE:g} s", None
        try:
            while text is None and time.monotonic() < end:
                text = hear_of_process(key, _SLICE)
        except RuntimeError as error:
            got = str(error).partition("\n")[0]
        if text is None:
            raise errors.CheckpointError(
                expected="process 0, which writes for all processes, to make this call too",
                got=got,
                do="See what process 0 printed: it ended, or did not reach this call. Its "
                "finished steps are kept.",
            )
        message = json.loads(text)
        if message["error"]:
            kind = getattr(errors, message["error"], errors.CheckpointError)
            raise kind(f"Process 0 of {jax.process_count()}: {message['word']}")
        return message["word"]


@contextlib.contextmanager
def shared_call(name: str) -> Iterator[SharedCall]:
    """A call under way; where it ends with an error in the first process, the others hear of it."""
    call = SharedCall(name)
    try:
        yield call
    except BaseException as error:
        # This error is raised even if the message cannot be sent.
        with contextlib.suppress(Exception):
            call.say(str(error) or type(error).__name__, error=type(error).__name__)
        raise


def by_first_process(
    write: Callable[Concatenate[str | os.PathLike[str], P], pathlib.Path],
) -> Callable[Concatenate[str | os.PathLike[str], P], pathlib.Path]:
    """Decorate what writes a path: the first process does, the others wait until it is there."""

    @functools.wraps(write)
    def written(path: str | os.PathLike[str], *args: P.args, **kwargs: P.kwargs) -> pathlib.Path:
        absolute = as_path(path)
        with shared_call(f"{write.__name__} {os.fspath(path)}") as call:
            if call.is_writer:
                write(absolute, *args, **kwargs)
                call.say("written")
            else:
                call.hear()
        return pathlib.Path(path).expanduser()

    return written
