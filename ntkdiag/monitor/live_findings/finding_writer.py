"""Asks the rules after every record, and tells of what they find.

1. A record joins the history of its run: the ring buffer of the last ones.
2. Each rule is asked. One that fires is silent from then on, until it was quiet once.
3. A finding goes to the writers, then to the callbacks.

It is a writer itself: a writer thread of its own calls it, drops what is sent twice, and keeps
training from waiting for it. Rules and callbacks are code of the user; what they raise is said once
and goes no further.
"""

import collections
import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.error_isolation import described, warn
from ntkdiag.monitor.live_findings.dead_layers import layer_axes
from ntkdiag.monitor.live_findings.findings_argument import Findings
from ntkdiag.monitor.live_findings.rule import Row, Rule
from ntkdiag.monitor.writers import Values

MOST_RUNS = 64  # that share their steps, as under jax.vmap over seeds


@dataclasses.dataclass
class _Run:
    """The last records of one run as rules get them, newest last, and the rules that are silent."""

    history: collections.deque[Row]
    silent_rules: set[int] = dataclasses.field(default_factory=set)


class FindingWriter:
    """Takes the records of one monitor and tells what rules find in them.

    Args:
        findings: What to look for, and whom to tell beside the writers.
        tell_writers: Hands a finding to the writers of the monitor.
        is_heard: Whether one of those takes findings.
        call: The call that warnings begin with, as code.

    Attributes:
        n_findings: How many it has told.
    """

    def __init__(
        self, findings: Findings, tell_writers: Callable[[Finding], None], is_heard: bool, call: str
    ) -> None:
        self.findings = findings
        self.call = call
        self.n_findings = 0
        self._tell_writers = tell_writers
        self._is_heard = is_heard or bool(findings.callbacks)
        self._seen_beside: dict[str, Any] = {}  # what rules see of it beside the numbers
        self._runs: list[_Run] = []
        self._step: int | None = None
        self._n_of_step = 0  # records of this step so far
        self._fired_at_step: set[int] = set()
        self._failed: set[Hashable] = set()  # what has been said of failures

    def start(self, record: Mapping[str, Any]) -> None:
        """Keep the names of the layers, which the convention record has."""
        self._seen_beside = _seen_by_rules(record)

    def write(self, step: int, values: Values) -> None:
        """Take one measurement, and ask every rule about it."""
        run = self._run_of(step)
        if run is None:
            return
        run.history.append({"step": step, **self._seen_beside, **values})
        for index, rule in enumerate(self.findings.rules):
            finding = self._asked(index, rule, run)
            if finding is None:
                run.silent_rules.discard(index)
                continue
            if index in run.silent_rules:
                continue
            run.silent_rules.add(index)
            # Of many seeds that diverge at the same step one finding is enough.
            if index not in self._fired_at_step:
                self._fired_at_step.add(index)
                self._tell(finding)

    def _run_of(self, step: int) -> _Run | None:
        """The run that this record belongs to: the k-th record of each step is of the k-th run."""
        if self._step is not None and step < self._step:
            self._runs = []  # training began again
        if step != self._step:
            self._step = step
            self._n_of_step = 0
            self._fired_at_step = set()
        position = self._n_of_step
        self._n_of_step += 1
        if position >= MOST_RUNS:
            return None
        if position >= len(self._runs):
            run = _Run(collections.deque(maxlen=self.findings.history))
            self._runs.append(run)
            return run
        return self._runs[position]

    def _asked(self, index: int, rule: Rule, run: _Run) -> Finding | None:
        """What a rule says of a history; None where it fails, which is said once."""
        try:
            finding = rule.check(tuple(run.history))
            if finding is None or isinstance(finding, Finding):
                return finding
            raise TypeError(f"check(history) returned a {type(finding).__name__} and no Finding")
        except BaseException as error:
            self._note_failure(("rule", index), f"the rule {type(rule).__name__}", error)
        return None

    def _tell(self, finding: Finding) -> None:
        """Tell everybody of a finding, the writers first: callbacks may take their time."""
        self._tell_writers(finding)
        self.n_findings += 1
        if not self._is_heard:
            warn(f"{self.call}: {finding}")
        for index, callback in enumerate(self.findings.callbacks):
            try:
                callback(finding)
            except BaseException as error:
                name = getattr(callback, "__name__", type(callback).__name__)
                self._note_failure(("callback", index), f"on_finding={name}", error)

    def _note_failure(self, key: Hashable, what: str, error: BaseException) -> None:
        """Warn of the first failure of a rule or a callback."""
        if key in self._failed:
            return
        self._failed.add(key)
        reason = described(error).rstrip(".")
        warn(
            f"{self.call}: {what} failed with {reason}. This is said once, and it is tried again "
            "at the next one; training goes on."
        )


def _seen_by_rules(record: Mapping[str, Any]) -> dict[str, Any]:
    """What rules see of a record: layers and their axes."""
    seen: dict[str, Any] = {}
    if record.get("layers") is not None:
        seen["layers"] = list(record["layers"])
    if record.get("parameters"):
        seen["layer_axes"] = layer_axes(record)
    return seen
