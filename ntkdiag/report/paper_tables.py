"""Tables of a paper: as LaTeX to read, with a few digits, and as CSV to go on with, with all.

A table has the same name in both; its CSV may have more columns than fit on a page.
"""

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ntkdiag.display import spreadsheet_cell
from ntkdiag.report.figures.run_figure import TableRow
from ntkdiag.report.paper_latex import latex, latex_number, latex_table
from ntkdiag.report.reported import Comparison, Runs, SeedMean, Track
from ntkdiag.report.rows import all_rows, movement_rows

# Numbers of a checkpoint that a page has room for, and their headings in LaTeX.
HEADINGS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "held_out_accuracy": "held out",
    "participation_ratio": "modes",
    "drift": "$D$",
    "drift_distance_centred": "$S_c$",
    "alignment_above": "alignment",
    "held_out_alignment_above": "alignment",
    "margin": r"$\eta/\eta_c$",
}
MOST_LINES = 30  # of a table on a page; of more checkpoints, some that lie evenly
DIGITS = 3


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """One table.

    Attributes:
        name: Of its files.
        text: As LaTeX; empty for one that has no place on a page.
        lines: Its numbers, a dictionary for each line.
    """

    name: str
    text: str
    lines: Sequence[TableRow]

    def files(self) -> dict[str, bytes]:
        """Its files by name."""
        files = {f"tables/{self.name}.csv": csv_of(self.lines)}
        if self.text:
            files[f"tables/{self.name}.tex"] = self.text.encode(errors="replace")
        return files


def csv_of(lines: Sequence[TableRow]) -> bytes:
    """Lines as CSV with all digits; a number that is not known is nan, and no text a formula."""
    names: dict[str, None] = {}
    for line in lines:
        names.update(dict.fromkeys(line))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(spreadsheet_cell, names))
    for line in lines:
        writer.writerow(spreadsheet_cell(_written(line.get(name))) for name in names)
    return stream.getvalue().encode(errors="replace")


def tables_of_track(track: Track) -> list[PaperTable]:
    """The checkpoints line by line, and the shares of the leaves at the ends."""
    first = track.steps[0]
    e1 = track.matrix("e1")[0]
    series = {name: track.series(name) for name in track.names}
    series = {name: values for name, values in series.items() if values.ndim == 1}
    lines = []
    for place, step in enumerate(track.steps):
        line: TableRow = {"step": step}
        line |= {name: float(values[place]) for name, values in series.items()}
        lines.append({**line, f"e1_from_{first}": float(e1[place])})

    shown = {name: heading for name, heading in HEADINGS.items() if name in series}
    headings = ["step", *shown.values(), f"$e_1$ from {first}"]
    names = [*shown, f"e1_from_{first}"]
    places = _some(len(lines))
    rows = []
    for place in places:
        cells = [latex_number(lines[place][name], DIGITS) for name in names]
        rows.append([str(lines[place]["step"]), *cells])
    caption = (
        f"Checkpoints of a run. Modes: participation ratio $(\\sum\\lambda)^2/\\sum\\lambda^2$; "
        "$D$ and $S_c$: relative change of the kernel and distance of the centred kernels, both "
        f"from step {first}; $e_1$: error of the network linearized at step {first} over the "
        "change of the outputs."
    )
    if len(places) < len(lines):
        caption += f" {len(places)} of {len(lines)} checkpoints."
    text = latex_table(headings, rows, caption=caption, label="tab:checkpoints")
    return [PaperTable("checkpoints", text, lines), *_leaves_of_track(track)]


def tables_of_comparison(comparison: Comparison) -> list[PaperTable]:
    """All quantities at A and B, the change between them, and the leaves."""
    rows = []
    for row in all_rows(comparison):
        cells = [*row.values, "", "", ""][:3]
        if len(row.values) == 1:
            cells = ["", row.values[0], ""]  # what is between A and B
        rows.append([latex(row.name), latex(row.symbol), *map(latex, cells)])
    sides = f"{comparison.a.label} (A) and {comparison.b.label} (B)"
    quantities = latex_table(
        ["quantity", "", "A", "B", "B / A"],
        rows,
        caption=f"Kernels of {latex(sides)}. Of a change from A to B, the number stands under B.",
        label="tab:quantities",
    )
    a, b = comparison.a.numbers, comparison.b.numbers
    lines = [{"quantity": name, "a": a[name], "b": b.get(name, math.nan)} for name in a]
    change = [{"quantity": name, "value": value} for name, value in comparison.numbers.items()]

    headings = [
        "parameter",
        "size",
        r"$\|\Delta\theta\|$",
        r"$\|\Delta\theta\|/\|\theta_A\|$",
        "share at A",
        "at B",
        "$S_c$",
    ]
    leaves = latex_table(
        headings,
        [list(map(latex, cells)) for cells in movement_rows(comparison)],
        caption="Motion of the parameters, their share of the trace of the kernel, and the "
        "distance between the centred kernels of each.",
        label="tab:leaves",
    )
    *of_leaves, _ = comparison.movement
    return [
        PaperTable("quantities", quantities, lines),
        PaperTable("change", "", change),
        PaperTable("leaves", leaves, [leaf.to_dict() for leaf in of_leaves]),
    ]


def tables_of_runs(runs: Runs) -> list[PaperTable]:
    """Each quantity at the last common step of each group, with the interval of its mean."""
    names = [name for name in HEADINGS if name in runs.names]
    means = {name: runs.mean(name) for name in runs.names}
    rows = []
    for label in runs.groups:
        of_group = [means[name][label] for name in names]
        first = means[runs.names[0]][label]
        step = str(first.steps[-1]) if first.steps else "--"
        rows.append([latex(label), str(first.n_runs), step, *map(_with_interval, of_group)])
    text = latex_table(
        ["runs", "$n$", "step", *(HEADINGS[name] for name in names)],
        rows,
        caption=r"Mean over $n$ seeds at the last step that all runs of a group have, $\pm$ half "
        r"of its 95\,\% interval, $t\,s/\sqrt{n}$.",
        label="tab:seeds",
    )
    lines = []
    for name, of_groups in means.items():
        for label, mean in of_groups.items():
            lines.extend(_lines_of_mean(name, label, mean))
    return [PaperTable("seeds", text, lines)]


def _leaves_of_track(track: Track) -> list[PaperTable]:
    """The share of every leaf at the first and the last checkpoint; nothing without shares."""
    names = track.record.get("coordinates", {}).get("leaf", [])
    if "leaf_shares" not in track.names or track.series("leaf_shares").ndim != 2:
        return []
    shares = track.series("leaf_shares")  # [T leaves]
    first = track.steps[0]
    last = track.steps[-1]
    rows = []
    lines = []
    for place, name in enumerate(names):
        ends = float(shares[0, place]), float(shares[-1, place])
        rows.append(
            [latex(name or "(the only leaf)"), *(latex_number(end, DIGITS) for end in ends)]
        )
        for step, share in zip(track.steps, shares[:, place].tolist(), strict=True):
            lines.append({"parameter": name, "step": step, "share": share})
    text = latex_table(
        ["parameter", f"step {first}", f"step {last}"],
        rows,
        caption="Share of each parameter in the trace of the kernel.",
        label="tab:leaves",
    )
    return [PaperTable("leaves", text, lines)]


def _lines_of_mean(name: str, label: str, mean: SeedMean) -> list[TableRow]:
    """A line for each step, and each entry of a list."""
    lines = []
    for place, step in enumerate(mean.steps):
        for entry, value in np.ndenumerate(mean.mean[place]):
            at = (place, *entry)
            line: TableRow = {"group": label, "quantity": name, "step": step}
            if entry:
                line["entry"] = ".".join(map(str, entry))
            line |= {"n": mean.n_runs, "mean": float(value)}
            line["standard_deviation"] = float(mean.standard_deviation[at])
            lines.append({**line, "lower": float(mean.lower[at]), "upper": float(mean.upper[at])})
    return lines


def _with_interval(mean: SeedMean) -> str:
    """The mean at the last step, and half of its interval where there is one."""
    if not mean.steps:
        return "--"
    value = latex_number(float(mean.mean[-1]), DIGITS)
    half = float(mean.upper[-1] - mean.mean[-1])
    return f"{value} $\\pm$ {latex_number(half, 2)}" if math.isfinite(half) else value


def _some(count: int) -> list[int]:
    """All places, or some that lie evenly, the first and the last among them."""
    n = min(count, MOST_LINES)
    return sorted({round(place) for place in np.linspace(0, count - 1, n).tolist()})


def _written(value: Any) -> str:
    """A cell: text as it is, a number with as many digits as it takes to read it back."""
    if isinstance(value, str):
        return value
    if value is None:
        return "nan"
    return repr(np.asarray(value).item())
