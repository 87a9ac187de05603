"""The step in the name of a checkpoint: `100`, `model-100`, `step=100`, `step100`.

A name is a prefix and a number. What lies beside the checkpoints of a model under the same numbers,
such as the states of the optimizer in `optimizer-100`, is told by its prefix.
"""

import re
from typing import NamedTuple

from ntkdiag.checkpoints.saved_names import NOT_COLLECTIONS

# A number of no more digits than a step may have.
NUMBER = r"\d{1,19}"
# A number alone, behind a separator, or behind a word that says what it counts.
_NAME = re.compile(
    r"(?:(?P<prefix>.*[^-_=])(?P<separator>[-_=])|(?P<word>checkpoint|ckpt|step|epoch|iter))?"
    rf"(?P<number>{NUMBER})"
)
# "model-00001-of-00002" is a shard, "2024-05-01" a day, "checkpoint_1e-05" a fraction.
_NO_STEP = re.compile(r".*-of-\d+|.*\de[-+]\d\d|(?:.*\D)?\d{4}-\d\d-\d\d")


class StepName(NamedTuple):
    """The parts of a name that ends with a step."""

    prefix: str
    separator: str
    number: str

    @property
    def step(self) -> int:
        """The number that the name ends with."""
        return int(self.number)

    @property
    def is_of_model(self) -> bool:
        """Whether checkpoints of a model are called so, and not what lies beside them."""
        return self.prefix not in NOT_COLLECTIONS

    def beside(self, prefix: str) -> str:
        """What is called otherwise and has the same number."""
        return f"{prefix}{self.separator}{self.number}"


def read_step_name(name: str) -> StepName | None:
    """The parts of a name without its suffix; None where it ends with no step."""
    match = _NAME.fullmatch(name)
    if match is None or _NO_STEP.fullmatch(name):
        return None
    prefix = match["prefix"] or match["word"] or ""
    return StepName(prefix, match["separator"] or "", match["number"])
