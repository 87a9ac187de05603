"""From a measurement to every writer, without ever raising into the training loop or stopping it.

Each writer has a thread of its own while there is something to write (see `Courier`). Training
waits for the writers of a record for a second at most, so that what they wrote can be read at once
where they are as quick as a file or a list; one that has once taken longer is not waited for again
until it has caught up. Alerts are looked for on a thread of their own, too, after the record is on
its way to the writers, and so reach each of them behind it.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ntkdiag import errors
from ntkdiag.monitor.first_remarks import FirstRemarks
from ntkdiag.monitor.live_findings.finding_writer import AlertWriter
from ntkdiag.monitor.live_findings.findings_argument import Alerts
from ntkdiag.monitor.live_findings.rule import Alert
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

# "auto" looks for the standard alerts where there are writers to tell.
AlertsLike: TypeAlias = Alerts | Literal["auto"] | None


def alerts_of(alerts: AlertsLike, writers: Sequence[Writer]) -> Alerts | None:
    """What is looked for in the measurements of a monitor with these writers."""
    if isinstance(alerts, Alerts) or alerts is None:
        return alerts
    if alerts != "auto":
        raise errors.InvalidInputError(
            argument="alerts=...",
            expected='an ntkdiag.monitor.Alerts, "auto" or None',
            got=repr(alerts),
            do="alerts=Alerts(on_alert=[function]) tells a function.",
        )
    return Alerts() if writers else None


class Outbox:
    """Hands measurements to writers.

    Args:
        writers: The writers, as `read_writers` returns them.
        alerts: What is looked for in the measurements; None looks for nothing.
    """

    def __init__(self, writers: Sequence[Writer], alerts: Alerts | None = None) -> None:
        self.writers = tuple(writers)
        call = errors.current_call()
        self._couriers = [Courier(writer, call) for writer in self.writers]
        self._remarks = FirstRemarks()
        self._alert_writer: AlertWriter | None = None
        self._alert_couriers: list[Courier] = []  # one or none
        if alerts is not None:
            is_heard = any(callable(getattr(writer, "alert", None)) for writer in self.writers)
            self._alert_writer = AlertWriter(alerts, self._tell, is_heard, call)
            self._alert_couriers = [Courier(self._alert_writer, call)]

    def send(self, step: Step, values: Values, record: Mapping[str, Any]) -> None:
        """Have one measurement written everywhere, after the convention record of its writer."""
        self._remarks.look(values, record)
        n_alerts = self._n_alerts
        # All couriers set off before the first is waited for.
        posted = []
        for courier in (*self._couriers, *self._alert_couriers):
            receipt = courier.post_record(int(step), values, record)
            if receipt is not None:
                posted.append((courier, receipt))
        self._wait(posted)
        if self._n_alerts == n_alerts:
            return
        # The alerts that this record raised came into the queues behind it.
        in_time = [courier for courier in self._couriers if not courier.is_late]
        self._wait([(courier, courier.post_nothing()) for courier in in_time])

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        """Close the writers after all that was sent, and wait so many seconds for it at most."""
        begun = time.monotonic()
        # The last record may raise an alert, which goes to the writers before they are closed.
        posted = [(courier, courier.post_nothing()) for courier in self._alert_couriers]
        wait(posted, seconds / 2)
        couriers = (*self._couriers, *self._alert_couriers)
        posted = [(courier, courier.post_close()) for courier in couriers]
        wait_at_the_end(posted, seconds, waited=time.monotonic() - begun)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody takes what is sent."""
        return bool(self._couriers or self._alert_couriers)

    @property
    def _n_alerts(self) -> int:
        """How many alerts there were so far."""
        return 0 if self._alert_writer is None else self._alert_writer.n_alerts

    def _tell(self, alert: Alert) -> None:
        """Have an alert told by every writer that takes alerts."""
        for courier in self._couriers:
            courier.post_alert(alert)

    def _wait(self, posted: Sequence[tuple[Courier, Receipt]]) -> None:
        """Wait for couriers, and note which of them are late."""
        for courier in wait(posted, PATIENCE):
            courier.is_late = True
