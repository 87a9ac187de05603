"""`ntkdiag demo`: a run to look at."""

import pathlib
from typing import Annotated, Literal

import typer

from ntkdiag.commands.printing import print_json
from ntkdiag.commands.shared_options import JsonOption, examples

EXAMPLES = examples("ntkdiag demo", "ntkdiag demo --model nnx --steps 100 --out runs/first")


def demo(
    model: Annotated[
        Literal["linen", "equinox", "nnx"], typer.Option(help="Library of the model.")
    ] = "linen",
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

    from ntkdiag.demo.demo_settings import DemoSettings
    from ntkdiag.demo.run_through import run_demo

    settings = DemoSettings(library=model, steps=steps, every=every, seed=seed)
    if not as_json:
        run_demo(settings, out)
        return
    run = run_demo(settings, out, Console(stderr=True))
    print_json({"root": f"{run.root}", "report": f"{run.report}"})
