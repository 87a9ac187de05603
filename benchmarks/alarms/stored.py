"""The runs as they were stored, with the step at which each spikes."""

import dataclasses
import json
import pathlib

import numpy as np
from jaxtyping import Float

from benchmarks.alarms.criterion import spike_step
from benchmarks.alarms.networks import NETWORKS
from benchmarks.alarms.runs import EVERY, Run


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run that was trained.

    Attributes:
        run: What was trained.
        spike: The step at which the first spike begins; None where there is none.
        columns: A number of every step by its name; NaN where it is not known.
    """

    run: Run
    spike: int | None
    columns: dict[str, Float[np.ndarray, " s"]]

    @property
    def n_judged(self) -> int:
        """Steps before the spike, or all."""
        return len(self.columns["loss"]) if self.spike is None else self.spike

    def held(self, name: str) -> Float[np.ndarray, " s"]:
        """What was last measured, at every step."""
        values = self.columns[name]
        return values[np.arange(len(values)) // EVERY * EVERY]


def load(folder: pathlib.Path) -> list[StoredRun]:
    """All runs in a folder, by number."""
    return [_loaded(path.parent) for path in sorted(folder.glob("*/steps.jsonl"))]


def _loaded(folder: pathlib.Path) -> StoredRun:
    run = Run(**json.loads((folder / "run.json").read_text()))
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    names = {name for row in rows for name in row}
    columns = {
        name: np.array([row.get(name) for row in rows], dtype=float) for name in sorted(names)
    }
    return StoredRun(run, spike_step(columns["loss"], NETWORKS[run.network].guessing), columns)
