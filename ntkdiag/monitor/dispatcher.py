"""From a measurement to every writer, without ever raising into the training loop or stopping it.

Each writer has a thread of its own while there is something to write (see `WriterThread`). Training
waits for the writers of a record for a second at most, so that what they wrote can be read at once
where they are as quick as a file or a list; one that has once taken longer is not waited for again
until it has caught up. The run is judged on a thread of its own, too, after the record is on its
way to the writers, and so findings reach each of them behind it.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.first_remarks import FirstRemarks
from ntkdiag.monitor.live_findings.finding_writer import FindingWriter, OnFinding
from ntkdiag.monitor.schedule import Step
from ntkdiag.monitor.writer_thread import (
    CLOSING_SECONDS,
    PATIENCE,
    Receipt,
    WriterThread,
    wait,
    wait_at_the_end,
)
from ntkdiag.monitor.writers import Values, Writer


class Dispatcher:
    """Hands measurements to writers."""

    def __init__(
        self, writers: Sequence[Writer], callbacks: Sequence[OnFinding] | None = None
    ) -> None:
        self.writers = tuple(writers)
        call = errors.current_call()
        self._writer_threads = [WriterThread(writer, call) for writer in self.writers]
        self._remarks = FirstRemarks()
        self._finding_writer: FindingWriter | None = None
        self._finding_writer_threads: list[WriterThread] = []  # one or none
        if callbacks is not None:
            is_heard = any(callable(getattr(writer, "finding", None)) for writer in self.writers)
            self._finding_writer = FindingWriter(callbacks, self._tell, is_heard, call)
            self._finding_writer_threads = [WriterThread(self._finding_writer, call)]

    def send(
        self,
        step: Step,
        values: Values,
        record: Mapping[str, Any],
    ) -> None:
        """Have one measurement written everywhere, after the convention record of its writer."""
        self._remarks.look(values, record)
        n_findings = self._n_findings
        # All writer threads set off before the first is waited for.
        posted = []
        for writer_thread in (*self._writer_threads, *self._finding_writer_threads):
            receipt = writer_thread.post_record(int(step), values, record)
            if receipt is not None:
                posted.append((writer_thread, receipt))
        self._wait(posted)
        if self._n_findings == n_findings:
            return
        # What was found in this record came into the queues behind it.
        in_time = [
            writer_thread for writer_thread in self._writer_threads if not writer_thread.is_late
        ]
        self._wait([(writer_thread, writer_thread.post_nothing()) for writer_thread in in_time])

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        """Close the writers after all that was sent, and wait so many seconds for it at most."""
        begun = time.monotonic()
        # A finding of the last record goes to the writers before they are closed.
        posted = [
            (writer_thread, writer_thread.post_nothing())
            for writer_thread in self._finding_writer_threads
        ]
        wait(posted, seconds / 2)
        writer_threads = (*self._writer_threads, *self._finding_writer_threads)
        posted = [(writer_thread, writer_thread.post_close()) for writer_thread in writer_threads]
        wait_at_the_end(posted, seconds, waited=time.monotonic() - begun)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody takes what is sent."""
        return bool(self._writer_threads or self._finding_writer_threads)

    @property
    def _n_findings(self) -> int:
        """How many findings there were so far."""
        return 0 if self._finding_writer is None else self._finding_writer.n_findings

    def _tell(self, finding: Finding) -> None:
        """Have a finding told by every writer that takes findings."""
        for writer_thread in self._writer_threads:
            writer_thread.post_finding(finding)

    def _wait(self, posted: Sequence[tuple[WriterThread, Receipt]]) -> None:
        """Wait for writer threads, and note which of them are late."""
        for writer_thread in wait(posted, PATIENCE):
            writer_thread.is_late = True
