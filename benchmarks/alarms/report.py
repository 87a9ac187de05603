"""The tables of docs/alarms.md and its picture, from the runs."""

import pathlib
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console

from benchmarks.alarms import evaluation, stored
from benchmarks.alarms.evaluation import Scored, Verdict
from benchmarks.alarms.roc_figure import draw
from benchmarks.alarms.runs import RUNS, TROUBLES
from benchmarks.alarms.signals import OURS, RIVALS
from benchmarks.alarms.spike_risk import risks
from benchmarks.alarms.stored import StoredRun

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "alarms.md"
PICTURE = PAGE.parent / "images" / "alarms_roc.png"
BEGIN, END = "<!-- tables of benchmarks.alarms -->", "<!-- end of the tables -->"


def write(folder: pathlib.Path, console: Console) -> None:
    """Print the tables, and put them into the page."""
    runs = stored.load(folder)
    chosen_on = [run for run in runs if not run.run.is_held_out]
    reported = [run for run in runs if run.run.is_held_out]
    numbers = {"**risk of a spike**": risks(chosen_on), **OURS, **RIVALS}
    verdicts = {name: _verdict(of, chosen_on, reported) for name, of in numbers.items()}
    risk = next(iter(verdicts.values()))
    text = "\n\n".join(
        [
            _counts(runs),
            _numbers_table(verdicts),
            _causes_table(reported, numbers["**risk of a spike**"], risk.threshold),
            _networks_table(reported, numbers["**risk of a spike**"], risk.threshold),
        ]
    )
    console.print(text, soft_wrap=True)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    draw(PICTURE, {name: [Scored.of(run, of(run)) for run in reported] for name, of in numbers.items()})
