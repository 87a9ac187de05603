"""What a rule is: a pure function from the last records of a run to a finding."""

import abc
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ntkdiag.judging.finding import Finding
from ntkdiag.judging.measured_row import number_of

# One measurement: numbers and lists by name; also "step", and the names of the layers under
# "layers".
Row: TypeAlias = Mapping[str, float | int | list[float] | list[int] | list[str]]
History: TypeAlias = Sequence[Row]  # newest last


class Rule(abc.ABC):
    """Looks at the last records of a run and tells what is wrong with it.

    A rule is pure: the same history gives the same answer. It is asked after every measurement; one
    that has fired stays silent until it has answered None once.
    """

    @abc.abstractmethod
    def check(self, history: Sequence[Row]) -> Finding | None:
        """The finding, where the newest record asks for one.

        Args:
            history: The last records, newest last, never empty. Each maps names to numbers or
                lists, and has its step under "step" and, where there are layers, their names under
                "layers" and the numbers of their axes under "layer_axes". A number that was not
                measured is NaN or not there.

        Returns:
            A finding of the newest record, or None. Its id is that of the rule: the first finding
            of each id and layer is what `ntkdiag.open_run(run).findings` has of it.
        """


def numbers(row: Row, name: str) -> list[float]:
    """The list of numbers under a name; empty where there is none."""
    values = row.get(name, [])
    if not isinstance(values, list):
        return []
    return [float(value) for value in values]


def interval(row: Row, name: str) -> tuple[float, float] | None:
    """The 95 % interval of the number under a name; None where it has none."""
    ends = number_of(row, f"{name}_lower"), number_of(row, f"{name}_upper")
    return None if all(map(math.isnan, ends)) else ends


def step_of(history: History) -> int:
    """The step of the newest record."""
    return int(number_of(history[-1], "step"))
