"""What a monitor is told of live findings: the rules and the callbacks."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.live_findings.rule import Rule
from ntkdiag.monitor.live_findings.standard_rules import DEFAULT_RULES
from ntkdiag.monitor.writers import Writer

T = TypeVar("T")
OnFinding: TypeAlias = Callable[[Finding], object]


@dataclasses.dataclass(frozen=True)
class Findings:
    """What is looked for in the measurements of a run, and who is told.

    After every measurement the rules are asked, on a thread of their own, so that neither a rule
    nor a callback can stop training or raise into it. A finding goes to every writer that has a
    method `finding(finding)`, after the record that it is about, then to the callbacks. A rule that
    has fired stays silent until it was quiet once. Where there is nobody to tell (no such writer,
    no callback) a finding is a `RuntimeWarning`.

    Under `jax.vmap` over seeds several measurements have the same step: the k-th of every step is
    taken for the k-th run, up to 64 of them, and a rule fires once a step at most. A step that goes
    back begins a new run.

    Attributes:
        rules: The rules; none of them is asked twice about one measurement.
        on_finding: A function, or several, called with each `Finding`. What it raises becomes one
            warning.
        history: How many records rules look back upon.

    Raises:
        InvalidInputError: When a rule has no method `check`, `on_finding` cannot be called, or
            `history` is no positive integer or shorter than a rule looks back.

    Example:
        A rule of one's own::

            @dataclasses.dataclass(frozen=True)
            class LossAbove(ntkdiag.monitor.Rule):
                threshold: float = 10.0

                def check(self, history):
                    loss = history[-1].get("loss", math.nan)
                    if not loss > self.threshold:
                        return None
                    return ntkdiag.monitor.Finding(
                        id="loss-above",
                        severity="warning",
                        quantities=("loss",),
                        sentence=f"The loss is {loss:.3g}.",
                        value=loss,
                        threshold=self.threshold,
                        step=history[-1]["step"],
                        do="Look at the last batch.",
                    )
    """

    rules: Sequence[Rule] = DEFAULT_RULES
    on_finding: Sequence[OnFinding] | OnFinding = ()
    history: int = 64

    @errors.public
    def __post_init__(self) -> None:
        rules = _listed(self.rules)
        _require_rules(rules)
        _require_callbacks(_listed(self.on_finding))
        _require_length(self.history, rules)
        object.__setattr__(self, "rules", rules)

    @property
    def callbacks(self) -> tuple[OnFinding, ...]:
        """The functions of `on_finding`, also where it is one of them."""
        return _listed(self.on_finding)


# "auto" asks the standard rules where there is somebody to tell.
FindingsLike: TypeAlias = Findings | Literal["auto"] | None


def findings_of(
    findings: FindingsLike, on_finding: Sequence[OnFinding] | OnFinding, writers: Sequence[Writer]
) -> Findings | None:
    """What is looked for in the measurements of a monitor with these writers and functions."""
    functions = _listed(on_finding)
    if findings == "auto":
        return Findings(on_finding=functions) if writers or functions else None
    if findings is not None and not isinstance(findings, Findings):
        raise errors.InvalidInputError(
            argument="findings=...",
            expected='an ntkdiag.monitor.Findings, "auto" or None',
            got=repr(findings),
            do="on_finding=function tells a function what the standard rules find.",
        )
    if functions:
        raise errors.InvalidInputError(
            argument="findings=..., on_finding=...",
            expected="one of both",
            got="both",
            do="The functions go into the findings: findings=Findings(on_finding=[function]).",
        )
    return findings


def _listed(values: Sequence[T] | T) -> tuple[T, ...]:
    """A tuple of values, also where one comes without brackets."""
    return tuple(values) if isinstance(values, Sequence) else (values,)


def _require_rules(rules: Sequence[object]) -> None:
    """Refuse what has no method `check`, and classes, which have to be called first."""
    for rule in rules:
        is_class = isinstance(rule, type)
        if callable(getattr(rule, "check", None)) and not is_class:
            continue
        raise errors.InvalidInputError(
            argument="rules=...",
            expected="objects with a method check(history)",
            got=f"the class {rule.__name__}" if is_class else f"a {type(rule).__name__}",
            do="ntkdiag.monitor has MarginAbove(), StepErrorAbove(), NaNNear() and DeadLayer().",
        )


def _require_callbacks(callbacks: Sequence[object]) -> None:
    """Refuse what cannot be called."""
    for callback in callbacks:
        if not callable(callback):
            raise errors.InvalidInputError(
                argument="on_finding=...",
                expected="functions of one finding",
                got=f"a {type(callback).__name__}",
                do="Findings(on_finding=print) prints each finding.",
            )


def _require_length(history: int, rules: Sequence[object]) -> None:
    """Refuse a history that is too short for a rule ever to fire."""
    is_integer = isinstance(history, int | np.integer) and not isinstance(history, bool)
    if not is_integer or history < 1:
        raise errors.InvalidInputError(
            argument="history=...",
            expected="a positive integer number of records",
            got=repr(history),
            do="Findings(history=64) keeps the last 64.",
        )
    for rule in rules:
        times = getattr(rule, "times", 1)
        if times > history:
            raise errors.InvalidInputError(
                argument="history=...",
                expected=f"at least the {times} records that {type(rule).__name__} looks at",
                got=repr(history),
                do="Keep more records, or ask for fewer in a row.",
            )
