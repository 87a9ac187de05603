"""Measurements as a stream of a run directory, which a resumed training goes on with."""

import os
from collections.abc import Mapping
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.convention_record import SETTINGS
from ntkdiag.monitor.writers import Values
from ntkdiag.path_argument import as_path
from ntkdiag.runs.run_stream import require_name
from ntkdiag.runs.run_writer import RunWriter
from ntkdiag.runs.shared_call import shared_call


class RunLog:
    """Appends measurements to a stream of a run directory: what `out=` of `watch` and `Monitor` is.

    Each measurement is one line of the file ``<name>.jsonl``, with a checksum; `open_run` reads
    them, also while they are written. A resumed training goes on with the stream. One of other
    examples, another model or another loss is refused, and so is a second writer while the first
    one lives, in this process or another one. Process 0 of a JAX program writes.

    Args:
        out: The run directory; made as needed.
        name: The stream; another one for a second monitor of the same training.

    Raises:
        InvalidInputError: The name cannot be that of a file.
    """

    @errors.public
    def __init__(self, out: str | os.PathLike[str], *, name: str = "watch") -> None:
        require_name(name, "a stream")
        self._root, self._name = as_path(out, "out="), name
        self._call = f"watch {os.fspath(out)} {name}"  # the same in all processes
        self._writer: RunWriter | None = None

    def begin(self, record: Mapping[str, Any]) -> None:
        """Begin to write before training, in all processes of a program.

        Args:
            record: Entries of the convention record, as far as they are known.

        Raises:
            InvalidInputError: Somebody else writes to the stream, its entries are others, or the
                folder cannot be written to.
        """
        with shared_call(self._call) as call:
            if call.is_writer:
                try:
                    self._opened().require(record, SETTINGS)
                except BaseException:
                    self.close()
                    raise
                call.say("begun")
            else:
                call.hear()

    def start(self, record: Mapping[str, Any]) -> None:
        """Write the convention record, unless the last one of the stream says the same."""
        if jax.process_index() == 0:
            self._opened().state(record, SETTINGS)

    def write(self, step: int, values: Values) -> None:
        """Append one measurement."""
        self._append({"step": step, **values})

    def finding(self, finding: Finding) -> None:
        """Append one finding."""
        self._append({"finding": finding.to_dict()})

    def close(self) -> None:
        """Let others write to the stream; `write` begins again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _append(self, content: Mapping[str, Any]) -> None:
        if jax.process_index() == 0:
            self._opened().append(content)

    def _opened(self) -> RunWriter:
        if self._writer is None:
            self._writer = RunWriter(self._root, name=self._name)
        return self._writer
