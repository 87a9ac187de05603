"""`save_paper`: everything that a paper takes from a result, as one folder.

    figures/    each figure as PDF and SVG, its numbers as CSV
    tables/     each table as LaTeX (booktabs) and CSV
    methods.tex, methods.txt, references.bib
    article.tex, which sets all of them
    versions.json: what the numbers mean, versions and seeds, the files

The same result gives the same bytes.
"""

import functools
import importlib.metadata
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import ntkdiag
from ntkdiag import display, errors
from ntkdiag.report.figures.comparison_figures import COMPARISON_FIGURES
from ntkdiag.report.figures.run_figures import RUN_FIGURES
from ntkdiag.report.paper_figures import COLUMN, COLUMN_HEIGHT, TEXT, paper_figure
from ntkdiag.report.paper_folder import require_place, write_folder
from ntkdiag.report.paper_latex import latex
from ntkdiag.report.paper_methods import (
    methods_files,
    methods_of_comparison,
    methods_of_runs,
    methods_of_track,
    methods_of_watched,
    sources_of,
)
from ntkdiag.report.paper_tables import (
    HEADINGS,
    PaperTable,
    csv_of,
    tables_of_comparison,
    tables_of_runs,
    tables_of_track,
)
from ntkdiag.report.reported import Comparison, Runs, Track
from ntkdiag.report.run_plots import draw_run_figure
from ntkdiag.report.run_subject import RunSubject
from ntkdiag.report.seed_curves import draw_seed_curves
from ntkdiag.runs.run_reader import RunReader
from ntkdiag.runs.shared_call import by_first_process

_NO_SEED = "not in the record: state the seeds of the training"
_LEAST_HEIGHT = 2.0  # inches
Captions = dict[str, tuple[str, str]]  # of a figure: its caption, and "figure" or "figure*"


@by_first_process
def save_run_paper(
    path: str | os.PathLike[str], track: Track | None, run: RunReader | None, *, overwrite: bool
) -> pathlib.Path:
    """Write the figures of a run that are there, its tables and methods."""
    folder = _begin(path, overwrite=overwrite)
    subject = RunSubject.of(track, run)
    files: dict[str, bytes] = {}
    captions: Captions = {}
    for name, figure in RUN_FIGURES.items():
        if figure.is_there(subject):
            draw = functools.partial(_draw_run_figure, name, subject)
            _add(files, name, paper_figure(draw, (COLUMN, COLUMN_HEIGHT)), figure.table(subject))
            captions[name] = (latex(f"{figure.title}. {figure.caption}"), "figure")
    if not captions:
        raise errors.InvalidInputError(
            expected="a run with checkpoints of track or measurements of a monitor",
            got="neither",
            do="Track it: ntkdiag.track(..., out=...).",
        )
    tables = [] if track is None else tables_of_track(track)
    paragraphs = [] if track is None else methods_of_track(track)
    record = subject.record or subject.watch_record
    quantities = [*captions, *([] if track is None else track.names)]
    if subject.watched:
        paragraphs = [*paragraphs, *methods_of_watched(subject.watch_record)]
    conventions = {"checkpoints": dict(subject.record), "monitor": dict(subject.watch_record)}
    _finish(
        folder, files, captions, tables, paragraphs, quantities, conventions, record.get("seed")
    )
    return folder


@by_first_process
def save_comparison_paper(
    path: str | os.PathLike[str], comparison: Comparison, *, overwrite: bool
) -> pathlib.Path:
    """Write the figures of a comparison, its tables and methods."""
    folder = _begin(path, overwrite=overwrite)
    files: dict[str, bytes] = {}
    captions: Captions = {}
    for name, figure in COMPARISON_FIGURES.items():
        if not figure.is_there(comparison):
            continue
        width, height = figure.size(comparison)
        paper_width = COLUMN if figure.n_panels == 1 else TEXT
        size = (paper_width, max(_LEAST_HEIGHT, paper_width * height / width))
        draw = functools.partial(figure.draw, comparison)
        drawn = paper_figure(draw, size, **figure.panels)
        _add(files, name, drawn, figure.table(comparison))
        captions[name] = (latex(figure.caption), "figure" if figure.n_panels == 1 else "figure*")
    quantities = ["distance", "e1", "entropy_rank"]
    if comparison.a.alignment is not None:
        quantities.append("alignment")
    if comparison.a.critical_learning_rate is not None:
        quantities.append("margin")
    tables = tables_of_comparison(comparison)
    paragraphs = methods_of_comparison(comparison)
    conventions = {"facts": comparison.facts, "notes": list(comparison.notes)}
    conventions["verdict"] = comparison.verdict.to_dict()
    _finish(folder, files, captions, tables, paragraphs, quantities, conventions, None)
    return folder


@by_first_process
def save_runs_paper(path: str | os.PathLike[str], runs: Runs, *, overwrite: bool) -> pathlib.Path:
    """Write the quantities of several runs over each other, their means and methods."""
    folder = _begin(path, overwrite=overwrite)
    tables = tables_of_runs(runs)
    files: dict[str, bytes] = {}
    captions: Captions = {}
    for name in dir(runs.plot):
        if name in HEADINGS or not set(HEADINGS) & set(runs.names):
            draw = functools.partial(_draw_seed_curves, runs, name)
            lines = [line for line in tables[0].lines if line["quantity"] == name]
            _add(files, name, paper_figure(draw, (COLUMN, COLUMN_HEIGHT)), lines)
            text = f"{name.replace('_', ' ').capitalize()}: mean over seeds, 95 % interval of it, "
            captions[name] = (latex(text + "and single runs."), "figure")
    paragraphs = methods_of_runs(runs)
    conventions = {member.name: dict(member.record) for member in runs.members}
    seeds = {member.name: member.record.get("seed", _NO_SEED) for member in runs.members}
    _finish(folder, files, captions, tables, paragraphs, runs.names, conventions, seeds)
    return folder


def _begin(path: str | os.PathLike[str], *, overwrite: bool) -> pathlib.Path:
    """Refuse what cannot be written before anything is drawn."""
    folder = require_place(path, overwrite=overwrite)
    display.require_matplotlib()
    return folder


def _draw_run_figure(name: str, subject: RunSubject, ax: Any) -> None:
    draw_run_figure(RUN_FIGURES[name], subject, ax=ax)


def _draw_seed_curves(runs: Runs, name: str, ax: Any) -> None:
    draw_seed_curves(runs, name, ax=ax)


def _add(
    files: dict[str, bytes], name: str, drawn: Mapping[str, bytes], lines: Sequence[dict[str, Any]]
) -> None:
    """Note the files of a figure, and its numbers where it has some."""
    for ending, content in drawn.items():
        files[f"figures/{name}.{ending}"] = content
    if lines:
        files[f"figures/{name}.csv"] = csv_of(lines)


def _finish(
    folder: pathlib.Path,
    files: dict[str, bytes],
    captions: Captions,
    tables: Sequence[PaperTable],
    paragraphs: Sequence[str],
    quantities: Sequence[str],
    conventions: Mapping[str, Any],
    seeds: Any,
) -> None:
    """Add tables, methods and the article, and write the folder."""
    for table in tables:
        files.update(table.files())
    files.update(methods_files(paragraphs, sources_of(quantities), ntkdiag.__version__))
    files["article.tex"] = _article(captions, tables).encode(errors="replace")
    versions = {
        "versions": {
            "ntkdiag": ntkdiag.__version__,
            "matplotlib": importlib.metadata.version("matplotlib"),
        },
        "seeds": _NO_SEED if seeds is None else seeds,
        "conventions": conventions,
    }
    write_folder(folder, files, display.plain(versions))


def _article(captions: Captions, tables: Sequence[PaperTable]) -> str:
    """A document that sets methods, tables and figures, to look at and to take from."""
    parts = [
        r"\documentclass[twocolumn]{article}",
        r"\usepackage[utf8]{inputenc}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage{amsmath,booktabs,graphicx}",
        r"\begin{document}",
        r"\section*{Methods}",
        r"\input{methods}",
        *(rf"\input{{tables/{table.name}}}" for table in tables if table.text),
    ]
    for name, (caption, kind) in captions.items():
        parts += [
            rf"\begin{{{kind}}}[htbp]",
            r"  \centering",
            rf"  \includegraphics{{figures/{name}.pdf}}",
            rf"  \caption{{{caption}}}",
            rf"  \label{{fig:{name}}}",
            rf"\end{{{kind}}}",
        ]
    parts += [
        r"\clearpage",
        r"\bibliographystyle{plain}",
        r"\bibliography{references}",
        r"\end{document}",
    ]
    return "\n".join(parts) + "\n"
