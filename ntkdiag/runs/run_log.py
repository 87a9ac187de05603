"""What `out=` of `watch` and `Monitor` writes."""

import os
from collections.abc import Mapping
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.path_argument import as_path
from ntkdiag.runs.run_stream import require_name
from ntkdiag.runs.run_writer import RunWriter
from ntkdiag.runs.shared_call import shared_call

# What stays the same over a run, however often it is resumed: when and what is measured need not.
_SETTINGS = (
    "probe", "labels_sha256", "alignment_probe", "loss", "loss_in_words", "library", "mode",
    "parameters",
)  # fmt: skip


class RunLog:
    """Appends measurements to a stream of a run directory: what `out=` of `watch` and `Monitor` is.

    A resumed training continues with the stream. One of other examples, another model or another
    loss is refused, and so is a second writer while the first one lives.

    Args:
        out: The run directory; made as needed.
        name: The stream; another one for a second monitor of the same training.
    """

    @errors.public
    def __init__(self, out: str | os.PathLike[str], *, name: str = "watch") -> None:
        require_name(name)
        self._root, self._name = as_path(out, "out="), name
        self._call = f"watch {os.fspath(out)} {name}"  # the same in all processes
        self._writer: RunWriter | None = None

    def begin(self, record: Mapping[str, Any]) -> None:
        """Refuse a stream of other settings before training, in all processes of a program."""
        with shared_call(self._call) as call:
            if call.is_writer:
                try:
                    self._opened().require(record, _SETTINGS)
                except BaseException:
                    self.close()
                    raise
                call.say("begun")
            else:
                call.hear()

    def start(self, record: Mapping[str, Any]) -> None:
        """Write the convention record, unless the last one of the stream says the same."""
        if jax.process_index() == 0:
            self._opened().state(record, _SETTINGS)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one measurement."""
        if jax.process_index() == 0:
            self._opened().append({"step": step, **values})

    def close(self) -> None:
        """Let others write to the stream; `write` begins again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _opened(self) -> RunWriter:
        if self._writer is None:
            self._writer = RunWriter(self._root, name=self._name)
        return self._writer
