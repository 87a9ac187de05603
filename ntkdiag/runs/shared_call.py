"""A call that all processes of a program make, of which the first one alone writes.

1. All of them compute, and come to the same. The first process opens files and writes to them.
2. What it found there, or why it could not go on, it says to the others. They wait for that word
   where they need it, so that an error of the first process is one of all, and nobody is missed at
   the next collective operation.
3. The first process waits for nobody: it may make the call alone. Who waits does so for a time, and
   ends with an error where the first process is gone.
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

from ntkdiag import _jax, errors
from ntkdiag.path_argument import as_path

P = ParamSpec("P")

PATIENCE = 600.0  # seconds: the first process does what the others do, and writes
_SLICE = 2.0  # seconds after which one may be interrupted
# The calls of one name are counted, in all processes alike.
_counts: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)


class SharedCall:
    """What the first process says to the others during one call, in order."""

    def __init__(self, name: str) -> None:
        self.is_writer = jax.process_index() == 0
        self._has_others = jax.process_count() > 1 and _jax.can_hear_processes()
        self._name = f"ntkdiag/{name}/{next(_counts[name])}" if self._has_others else name
        self._places = itertools.count()

    def say(self, word: Any) -> None:
        """Tell the others: JSON values."""
        self._say({"word": word})

    def hear(self, default: Any = None) -> Any:
        """The next word of the first process; the default where there is no way to hear it."""
        if not self._has_others:
            return default
        key = f"{self._name}/{next(self._places)}"
        end = time.monotonic() + PATIENCE
        text = None
        while text is None and time.monotonic() < end:
            try:
                text = _jax.hear_of_process(key, _SLICE)
            except RuntimeError as error:
                raise _gone(str(error).partition("\n")[0]) from error
        if text is None:
            raise _gone(f"nothing for {PATIENCE:g} s")
        message = json.loads(text)
        if "error" in message:
            kind = getattr(errors, message["error"], errors.CheckpointError)
            raise kind(f"Process 0 of {jax.process_count()}: {message['text']}")
        return message["word"]

    def fail(self, error: BaseException) -> None:
        """Tell the others that this process ended with an error, unless they heard it all."""
        self._say({"error": type(error).__name__, "text": str(error) or type(error).__name__})

    def _say(self, message: dict[str, Any]) -> None:
        if self.is_writer and self._has_others:
            _jax.say_to_processes(f"{self._name}/{next(self._places)}", json.dumps(message))


@contextlib.contextmanager
def shared_call(name: str) -> Iterator[SharedCall]:
    """A call under way; where it ends with an error in the first process, the others hear of it."""
    call = SharedCall(name)
    try:
        yield call
    except BaseException as error:
        # What is to be raised is this error, whatever becomes of the word.
        with contextlib.suppress(Exception):
            call.fail(error)
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


def _gone(got: str) -> errors.CheckpointError:
    """The error for a first process that says nothing any more."""
    return errors.CheckpointError(
        expected="process 0, which writes for all processes of this program, to make this call too",
        got=got,
        do="See what process 0 printed: it ended, or was killed, or did not come to this call. "
        "What it had finished is kept.",
    )
