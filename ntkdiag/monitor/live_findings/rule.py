"""What an alert says, and what a rule is: a pure function from the last records to an alert."""

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

# One measurement: numbers and lists by name, without the prefix of the monitor; also "step", and
# the names of the layers under "layers".
Row: TypeAlias = Mapping[str, float | int | list[float] | list[str]]
History: TypeAlias = Sequence[Row]  # newest last


@dataclasses.dataclass(frozen=True)
class Alert:
    """What a rule found in the last records of a run.

    Attributes:
        rule: Name of the rule that fired.
        step: The measured step at which it fired.
        quantity: What was too large or too small, without the prefix of the monitor.
        value: Its number at that step; NaN is a value, too.
        threshold: What the number was compared with.
        message: What happened, as one sentence.
        advice: What to do about it, as one sentence.
    """

    rule: str
    step: int | np.integer
    quantity: str
    value: float | int | np.number
    threshold: float | int | np.number
    message: str
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values as JSON has them, with None for a number that is not finite."""
        entries = dataclasses.asdict(self)
        entries["step"] = int(self.step)
        for name in ("value", "threshold"):
            number = float(entries[name])
            entries[name] = number if math.isfinite(number) else None
        return entries

    def __str__(self) -> str:
        text = f"ALERT step {self.step} {self.rule}: {self.message} {self.advice}"
        return " ".join(text.split())  # one line, whatever the sentences hold


def alert_from_dict(entries: Mapping[str, Any]) -> Alert:
    """The alert that `Alert.to_dict` wrote, with NaN for None."""
    numbers = {}
    for name in ("value", "threshold"):
        numbers[name] = math.nan if entries[name] is None else entries[name]
    return Alert(**{**entries, **numbers})


def is_alert(entries: Mapping[str, Any]) -> bool:
    """Whether these are the entries of an alert: all of them, each of its kind."""
    if entries.keys() != {field.name for field in dataclasses.fields(Alert)}:
        return False
    are_numbers = [isinstance(entries[name], int | float | None) for name in ("value", "threshold")]
    texts = [entries[name] for name in ("rule", "quantity", "message", "advice")]
    are_texts = [isinstance(text, str) for text in texts]
    return isinstance(entries["step"], int) and all(are_numbers) and all(are_texts)


class Rule(abc.ABC):
    """Looks at the last records of a run and tells what is wrong with it.

    A rule is pure: the same history gives the same answer. It is asked after every measurement; one
    that has fired stays silent until it has answered None once.
    """

    @property
    def name(self) -> str:
        """What its alerts are called; its class unless a rule says otherwise."""
        return type(self).__name__

    @abc.abstractmethod
    def check(self, history: Sequence[Row]) -> Alert | None:
        """The alert, where the newest record asks for one.

        Args:
            history: The last records, newest last, never empty. Each maps names to numbers or
                lists, without the prefix of the monitor ("margin", not "ntk_margin"), and has its
                step under "step" and, where there are layers, their names under "layers" and the
                numbers of their axes under "layer_axes". A number that was not measured is NaN or
                not there.

        Returns:
            An alert of the newest record, or None.
        """


def number(row: Row, name: str) -> float:
    """The number under a name; NaN where there is none."""
    value = row.get(name, math.nan)
    return math.nan if isinstance(value, list) else float(value)


def numbers(row: Row, name: str) -> list[float]:
    """The list of numbers under a name; empty where there is none."""
    values = row.get(name, [])
    if not isinstance(values, list):
        return []
    return [float(value) for value in values]


def step_of(history: History) -> int:
    """The step of the newest record."""
    return int(number(history[-1], "step"))
