"""The tables of docs/alarms.md and its picture, from the runs."""

import itertools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from rich.console import Console

from benchmarks.alarms import fitting, saved_run, stored
from benchmarks.alarms.evaluation import Scored, Verdict, chosen_threshold, verdict
from benchmarks.alarms.roc_figure import draw
from benchmarks.alarms.signals import OURS, RIVALS, Numbers
from benchmarks.alarms.stored import StoredRun
from ntkdiag.judging.spike_risk import THRESHOLD

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "alarms.md"
IMAGES = PAGE.parent / "images"
BEGIN, END = "<!-- made by python -m benchmarks.alarms -->", "<!-- end -->"
# What nothing that was measured before could tell of.
SUDDEN = ("rate jumps", "broken inputs", "flipped labels")
RISK = "**risk of a spike**"
DRAWN = (RISK, "margin", "update norm over its median", "loss, CUSUM", "kurtosis of activations")

Signal = Callable[[StoredRun], Numbers]


def write(folder: pathlib.Path, console: Console) -> None:
    """Print the fit and the tables, and put these into the page."""
    runs = stored.load(folder)
    chosen_on = [run for run in runs if not run.run.is_held_out]
    reported = [run for run in runs if run.run.is_held_out]
    console.print(fitting.fit(chosen_on))
    signals: dict[str, Signal] = {RISK: fitting.risk, **OURS, **RIVALS}
    parts = [
        _counts(runs, reported),
        _numbers_table(signals, chosen_on, reported),
        _groups_table("cause", reported, lambda run: run.run.cause),
        _groups_table("network", reported, lambda run: run.run.network),
        _groups_table("optimizer", reported, lambda run: run.run.optimizer),
        _reliability_table(reported),
    ]
    text = "\n\n".join(parts)
    console.print(text, soft_wrap=True, markup=False)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    building = [run for run in reported if _builds_up(run)]
    draw(IMAGES / "alarms_roc.png", {name: _scored(signals[name], building) for name in DRAWN})
    saved_run.draw(IMAGES / "alarms_saved.png", reported)


def _builds_up(run: StoredRun) -> bool:
    return run.run.cause not in SUDDEN


def _scored(signal: Signal, runs: Iterable[StoredRun]) -> list[Scored]:
    return [Scored.of(run, signal(run)) for run in runs]


def _counts(runs: Sequence[StoredRun], reported: Sequence[StoredRun]) -> str:
    """How many there are."""
    spikes = sum(run.spike is not None for run in runs)
    of_reported = [run for run in reported if run.spike is not None]
    building = sum(map(_builds_up, of_reported))
    steps = sum(run.n_judged for run in reported)
    return (
        f"{len(runs)} runs, {spikes} of them with a spike. Reported: {len(reported)} runs, "
        f"{len(of_reported)} with a spike, {building} of these by a cause that builds up, and "
        f"{steps:,} steps before a spike or the end."
    )


def _numbers_table(
    signals: Mapping[str, Signal], chosen_on: Sequence[StoredRun], reported: Sequence[StoredRun]
) -> str:
    """A row for each number."""
    building = [run for run in reported if _builds_up(run)]
    rows = []
    for name, signal in signals.items():
        threshold = THRESHOLD if name == RISK else chosen_threshold(_scored(signal, chosen_on))
        of_all = verdict(_scored(signal, reported), threshold)
        of_building = verdict(_scored(signal, building), threshold)
        rows.append(
            [
                name,
                _interval(of_all.area),
                _interval(of_building.area),
                _interval(of_all.caught),
                _interval(of_building.caught),
                f"{of_all.false_rate[0]:.1f}",
                _leads(of_building),
            ]
        )
    head = [
        "number",
        "area, all",
        "area, builds up",
        "caught, all",
        "caught, builds up",
        "false in 10⁴ steps",
        "lead, steps",
    ]
    return _table(head, rows)


def _groups_table(
    title: str, reported: Sequence[StoredRun], group_of: Callable[[StoredRun], str]
) -> str:
    """What the risk caught of each group of runs."""
    rows = []
    for group in dict.fromkeys(map(group_of, reported)):
        scored = _scored(fitting.risk, [run for run in reported if group_of(run) == group])
        spikes = [one for one in scored if one.run.spike is not None]
        leads = [one.lead(THRESHOLD) for one in spikes]
        caught = sorted(lead for lead in leads if lead is not None)
        alarms = sum(one.false_alarms(THRESHOLD) for one in scored)
        lead = f"{np.median(caught):.0f}" if caught else "–"
        row = [group, len(scored), len(spikes), len(caught), lead, alarms]
        rows.append(list(map(str, row)))
    return _table([title, "runs", "spikes", "caught", "median lead", "false alarms"], rows)


def _reliability_table(reported: Sequence[StoredRun]) -> str:
    """How often a spike follows within 50 steps, at each risk."""
    scored = _scored(fitting.risk, reported)
    risks = np.concatenate([one.scores for one in scored])
    follows = np.concatenate([one.is_ahead for one in scored])
    edges = [0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 1.0]
    rows = []
    for low, high in itertools.pairwise(edges):
        within = (risks >= low) & (risks < high)
        share = f"{follows[within].mean():.2f}" if within.any() else "–"
        rows.append([f"{low:g} to {high:g}", f"{within.sum():,}", share])
    return _table(["risk", "steps", "share followed by a spike"], rows)


def _interval(number: tuple[float, float, float]) -> str:
    value, lower, upper = number
    return f"{value:.2f} [{lower:.2f}, {upper:.2f}]"


def _leads(of: Verdict) -> str:
    """Median and quartiles."""
    if not of.leads:
        return "–"
    low, middle, high = np.percentile(of.leads, [25, 50, 75])
    return f"{middle:.0f} [{low:.0f}, {high:.0f}]"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
