"""From a measurement to every writer, without ever raising into the training loop or stopping it.

Each writer has a thread of its own while there is something to write (see `Courier`). Training
waits for the writers of a record for a second at most, so that what they wrote can be read at once
where they are as quick as a file or a list; one that has once taken longer is not waited for again
until it has caught up. Rules are asked on a thread of their own, too, after the record is on its
way to the writers, and so their findings reach each of them behind it.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.first_remarks import FirstRemarks
from ntkdiag.monitor.live_findings.finding_writer import FindingWriter
from ntkdiag.monitor.live_findings.findings_argument import Findings
from ntkdiag.monitor.schedule import Step
from ntkdiag.monitor.writer_thread import (
    CLOSING_SECONDS,
    PATIENCE,
    Courier,
    Receipt,
    wait,
    wait_at_the_end,
)
from ntkdiag.monitor.writers import Values, Writer


class Outbox:
    """Hands measurements to writers.

    Args:
        writers: The writers, as `read_writers` returns them.
        findings: What is looked for in the measurements; None looks for nothing.
    """

    def __init__(self, writers: Sequence[Writer], findings: Findings | None = None) -> None:
        self.writers = tuple(writers)
        call = errors.current_call()
        self._couriers = [Courier(writer, call) for writer in self.writers]
        self._remarks = FirstRemarks()
        self._finding_writer: FindingWriter | None = None
        self._finding_couriers: list[Courier] = []  # one or none
        if findings is not None:
            is_heard = any(callable(getattr(writer, "finding", None)) for writer in self.writers)
            self._finding_writer = FindingWriter(findings, self._tell, is_heard, call)
            self._finding_couriers = [Courier(self._finding_writer, call)]

    def send(
        self,
        step: Step,
        values: Values,
        record: Mapping[str, Any],
        batch_indices: Sequence[int] | None = None,
    ) -> None:
        """Have one measurement written everywhere, after the convention record of its writer.

        The numbers of the examples of the batch, where they are known, are for rules alone.
        """
        self._remarks.look(values, record)
        n_findings = self._n_findings
        of_rules = dict(values)
        if batch_indices is not None:
            of_rules["batch_indices"] = list(batch_indices)
        sent = [(courier, values) for courier in self._couriers]
        sent += [(courier, of_rules) for courier in self._finding_couriers]
        # All couriers set off before the first is waited for.
        posted = []
        for courier, numbers in sent:
            receipt = courier.post_record(int(step), numbers, record)
            if receipt is not None:
                posted.append((courier, receipt))
        self._wait(posted)
        if self._n_findings == n_findings:
            return
        # What was found in this record came into the queues behind it.
        in_time = [courier for courier in self._couriers if not courier.is_late]
        self._wait([(courier, courier.post_nothing()) for courier in in_time])

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        """Close the writers after all that was sent, and wait so many seconds for it at most."""
        begun = time.monotonic()
        # A finding of the last record goes to the writers before they are closed.
        posted = [(courier, courier.post_nothing()) for courier in self._finding_couriers]
        wait(posted, seconds / 2)
        couriers = (*self._couriers, *self._finding_couriers)
        posted = [(courier, courier.post_close()) for courier in couriers]
        wait_at_the_end(posted, seconds, waited=time.monotonic() - begun)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody takes what is sent."""
        return bool(self._couriers or self._finding_couriers)

    @property
    def _n_findings(self) -> int:
        """How many findings there were so far."""
        return 0 if self._finding_writer is None else self._finding_writer.n_findings

    def _tell(self, finding: Finding) -> None:
        """Have a finding told by every writer that takes findings."""
        for courier in self._couriers:
            courier.post_finding(finding)

    def _wait(self, posted: Sequence[tuple[Courier, Receipt]]) -> None:
        """Wait for couriers, and note which of them are late."""
        for courier in wait(posted, PATIENCE):
            courier.is_late = True
