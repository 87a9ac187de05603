"""A call that all processes of a program make, of which the first one alone writes.

The first process reports what it found in its files, or why it failed, and does not wait. The
others wait for that word, so that an error of the first process is one of all, and none is
missing at the next collective operation.
"""

import collections
import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.jaxtools.tracing import can_hear_processes, hear_of_process, say_to_processes

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
