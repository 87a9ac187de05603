"""Where finished checkpoints of a run are: in a run directory, or nowhere."""

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from ntkdiag.runs.run_writer import RunWriter


class Unstored:
    """Keeps numbers for this call alone; arrays stay with their places."""

    def __init__(self) -> None:
        self.finished: dict[int, dict[str, Any]] = {}

    def write(self, step: int, row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the numbers."""
        self.finished[step] = dict(row)

    def amend(self, step: int, row: Mapping[str, Any]) -> None:
        """Keep other numbers."""
        self.finished[step] = dict(row)

    def read(self, step: int) -> dict[str, np.ndarray]:
        """Nothing is finished before it is measured."""
        raise KeyError(step)

    def __enter__(self) -> "Unstored":
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is held open."""


# Where finished checkpoints are.
Store: TypeAlias = RunWriter | Unstored


def opened_store(out: str | os.PathLike[str] | None, record: Mapping[str, Any]) -> Store:
    """The run directory to go on with, where there is one."""
    return Unstored() if out is None else RunWriter.open(out, record)
