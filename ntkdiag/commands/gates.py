"""`--fail-on "drift > 0.5"`: conditions on the numbers of a result, for continuous integration.

    NAME OP NUMBER      OP one of < <= > >= == !=      any:NAME, all:NAME over checkpoints

1. Conditions are read before any work; a name that the command can never have is refused then.
2. The numbers of a result are flattened: `a.loss` is the loss in the dictionary `a`, and
   `eigenvalues.0` the first entry of a list. Of several checkpoints the last one counts, or any, or
   all of them.
3. A condition that holds ends the command with status 3; so does one that nobody can decide,
   because its number is NaN or was not measured: what is not resolved does not pass.
"""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer

from ntkdiag.commands.printing import say
from ntkdiag.commands.usage import UsageError, usage_error

STATUS = 3  # of a command whose condition held

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_CONDITION = re.compile(
    r"\s*(?:(?P<over>any|all)\s*:)?\s*(?P<name>[A-Za-z_][\w.]*)\s*(?P<sign><=|>=|==|!=|<|>)"
    r"\s*(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
)
_INDEX = re.compile(r"\.\d+(?=\.|$)")  # of an entry of a list, in a dotted name


@dataclasses.dataclass(frozen=True)
class Gate:
    """A condition on one number.

    Attributes:
        text: As it was given.
        over: "any" or "all" of the checkpoints; "last" for the last one.
        name: Of the number.
        sign: How it is compared.
        bound: With what.
    """

    text: str
    over: str
    name: str
    sign: str
    bound: float

    def holds(self, rows: Sequence[Mapping[str, float]]) -> bool | None:
        """Whether it holds of the numbers of some checkpoints; None where nobody can tell."""
        values = self.values(rows)
        compare = _OPERATORS[self.sign]
        answers = [compare(value, self.bound) for value in values if not math.isnan(value)]
        # One yes decides "any", one no decides "all", whatever is not resolved beside it.
        decisive = self.over != "all"
        if decisive in answers:
            return decisive
        if len(answers) < len(values) or not values:
            return None
        return not decisive

    def values(self, rows: Sequence[Mapping[str, float]]) -> list[float]:
        """The numbers that it is about."""
        counted = rows[-1:] if self.over == "last" else rows
        return [row[self.name] for row in counted if self.name in row]


def read_gates(
    conditions: Iterable[str] | None, command: str, known: Iterable[str] | None = None
) -> list[Gate]:
    """Read the conditions of a command; `known` are the names that its numbers can have.

    An entry of `known` that ends in a dot is the beginning of names. None leaves the names to
    `judge`, which sees the numbers.
    """
    gates = []
    for text in conditions or []:
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise usage_error(
                _call(command, text), "NAME OP NUMBER with OP one of < <= > >= == !=", text
            )
        gate = Gate(
            text, found["over"] or "last", found["name"], found["sign"], float(found["bound"])
        )
        if known is not None and not _is_known(gate.name, known):
            raise _unknown(gate, command, known)
        gates.append(gate)
    return gates


def judge(
    gates: Sequence[Gate],
    rows: Sequence[Mapping[str, float]],
    command: str,
    known: Iterable[str] = (),
) -> None:
    """Say which conditions hold of the numbers of some checkpoints, and end the command then.

    A number that is `known` and not there was not measured; any other one does not exist.
    """
    names = sorted(set().union(*rows))
    failed = False
    for gate in gates:
        if gate.name not in names and not _is_known(gate.name, known):
            raise _unknown(gate, command, names)
        if gate.holds(rows) is False:
            continue
        failed = True
        say(f"ntkdiag: {_call(command, gate.text)}: {_reason(gate, rows)}")
    if failed:
        raise typer.Exit(STATUS)


def numbers_in(content: Any, prefix: str = "") -> dict[str, float]:
    """All numbers of plain values by dotted name; what is not known is NaN."""
    if isinstance(content, Mapping):
        entries = content.items()
    elif isinstance(content, list):
        entries = enumerate(content)
    elif content is None:
        return {prefix: math.nan}
    elif isinstance(content, int | float) and not isinstance(content, bool):
        return {prefix: float(content)}
    else:
        return {}
    numbers = {}
    for key, value in entries:
        numbers |= numbers_in(value, f"{prefix}.{key}" if prefix else f"{key}")
    return numbers


def _reason(gate: Gate, rows: Sequence[Mapping[str, float]]) -> str:
    """Why a condition failed the command."""
    values = gate.values(rows)
    if not values:
        return f"{gate.name} is unresolved: it was not measured"
    if gate.holds(rows) is None:
        return f"{gate.name} is unresolved"
    if len(values) == 1:
        return f"{gate.name} is {values[0]:.6g}"
    resolved = [value for value in values if not math.isnan(value)]
    span = f"{min(resolved):.6g} to {max(resolved):.6g}"
    return f"{gate.name} is {span} over {len(values)} checkpoints"


def _is_known(name: str, known: Iterable[str]) -> bool:
    """Whether a name is among those that can be, or begins like one that ends in a dot."""
    without_index = _INDEX.sub("", name)
    return any(
        name.startswith(entry) if entry.endswith(".") else without_index == entry for entry in known
    )


def _unknown(gate: Gate, command: str, names: Iterable[str]) -> UsageError:
    """The error for a name that no number has; entries of lists are listed once."""
    listed = []
    for name in names:
        shown = f"{name}.." if name.endswith(".") else _INDEX.sub(".0", name)
        if shown not in listed:
            listed.append(shown)
    return usage_error(
        _call(command, gate.text), f"the name of a number: {', '.join(listed)}", gate.name
    )


def _call(command: str, text: str) -> str:
    return f"ntkdiag {command} --fail-on {text!r}"
