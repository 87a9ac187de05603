"""Judges a run after every record, as a writer behind all others."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.error_isolation import described, warn
from ntkdiag.monitor.live_findings.dead_layers import Layer, named_layers
from ntkdiag.monitor.live_findings.history import Row
from ntkdiag.monitor.live_findings.judgements import judged
from ntkdiag.monitor.writers import Values, Writer

HISTORY = 64  # records that are looked back upon

OnFinding: TypeAlias = Callable[[Finding], object]


def callbacks_of(
    on_finding: Sequence[OnFinding] | OnFinding,
    writers: Sequence[Writer],
) -> tuple[OnFinding, ...] | None:
    """The functions that are told of findings; None where nobody is."""
    callbacks = tuple(on_finding) if isinstance(on_finding, Sequence) else (on_finding,)
    for callback in callbacks:
        if not callable(callback):
            raise errors.InvalidInputError(
                argument="on_finding=...",
                expected="functions of one finding",
                got=f"a {type(callback).__name__}",
                do="on_finding=print prints each finding.",
            )
    return callbacks if callbacks or writers else None


class FindingWriter:
    """Tells what is found in the records of one monitor; what was told stays silent until quiet."""

    def __init__(
        self,
        callbacks: Sequence[OnFinding],
        tell_writers: Callable[[Finding], None],
        is_heard: bool,  # whether one of the writers takes findings
        call: str,
    ) -> None:
        self._callbacks = callbacks
        self._tell_writers = tell_writers
        self._is_heard = is_heard or bool(callbacks)
        self._call = call
        self._layers: list[Layer] = []
        self._history: collections.deque[Row] = collections.deque(maxlen=HISTORY)
        self._silent: set[int] = set()  # judgements
        self._failed: set[int] = set()  # callbacks

    def start(self, record: Mapping[str, Any]) -> None:
        """Keep the layers, which the convention record names."""
        self._layers = named_layers(record)

    def write(self, step: int, values: Values) -> None:
        """Take one measurement, the first of its step, and judge the run."""
        last = self._history[-1]["step"] if self._history else step - 1
        if step == last:
            return
        if step < last:  # training began again
            self._history.clear()
            self._silent.clear()
        self._history.append({"step": step, **values})
        for index, finding in enumerate(judged(tuple(self._history), self._layers)):
            if finding is None:
                self._silent.discard(index)
            elif index not in self._silent:
                self._silent.add(index)
                self._tell(finding)

    def _tell(self, finding: Finding) -> None:
        """Tell everybody of a finding, the writers first: callbacks may take their time."""
        self._tell_writers(finding)
        if not self._is_heard:
            warn(f"{self._call}: {finding}")
        for index, callback in enumerate(self._callbacks):
            try:
                callback(finding)
            except BaseException as error:
                if index in self._failed:
                    continue
                self._failed.add(index)
                name = getattr(callback, "__name__", type(callback).__name__)
                reason = described(error).rstrip(".")
                warn(
                    f"{self._call}: on_finding={name} failed with {reason}. This is said once, and "
                    "it is tried again at the next one; training goes on."
                )
