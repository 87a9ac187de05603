"""`ntkdiag demo`: a run to look at."""

import os
import pathlib
from typing import Annotated

import typer

from ntkdiag.commands.printing import print_json
from ntkdiag.commands.shared_options import JsonOption, examples

EXAMPLES = examples("ntkdiag demo", "ntkdiag demo --steps 100 --out runs/first")


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps.")] = 300,
    every: Annotated[
        int, typer.Option(min=1, help="Steps between two measurements of the kernel.")
    ] = 10,
    seed: Annotated[int, typer.Option(help="Seed of data split, initialisation and batches.")] = 0,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Folder to make; default: a new one under runs/.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a small network on digits, and watch its kernel; follow it through the checkpoints.

    Measurements, checkpoints and a report are in one folder.
    """
    from rich.console import Console

    from ntkdiag.demo import run_demo
    from ntkdiag.report.comparison_table import terminal

    console = Console(stderr=True) if as_json else terminal()
    root = run_demo(steps, every, seed, out, console)
    if as_json:
        print_json({"root": os.fspath(root), "report": os.fspath(root / "report.html")})
