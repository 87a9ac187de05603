"""The demo from beginning to end: train, watch, save, track, report."""

import functools
import os
import pathlib

from jaxtyping import PyTree
from rich.console import Console

from ntkdiag import errors
from ntkdiag.comparison.track import track
from ntkdiag.demo.demo_settings import LEARNING_RATE, LOSS, MOMENTUM, PROBE_PER_CLASS, DemoSettings
from ntkdiag.demo.digits import load_digits
from ntkdiag.demo.live import LiveView
from ntkdiag.demo.networks import LIBRARIES, build
from ntkdiag.demo.run_directory import RunDirectory, make_run_directory
from ntkdiag.demo.saving import checkpointer
from ntkdiag.demo.training import train
from ntkdiag.descent import Descent
from ntkdiag.opened_run import open_run
from ntkdiag.report.comparison_table import terminal
from ntkdiag.report.dependencies import require_report


def run_demo(
    settings: DemoSettings, out: pathlib.Path | None = None, console: Console | None = None
) -> RunDirectory:
    """Train a small network on the digits, and show everything ntkdiag has to say about it.

    The kernel is watched during training, then followed through the checkpoints; both go to one run
    directory, and a report of it is written.

    Args:
        settings: Library, steps, schedule, seed.
        out: Folder to make; None takes a fresh one under ``runs/``.
        console: Where to print; None is standard output.

    Returns:
        The run directory, with the checkpoints and the report in it.

    Raises:
        InvalidInputError: A setting is out of range, or `out` exists.
        MissingDependencyError: An optional library is not installed.
    """
    # Everything that can be refused is refused before minutes of training, not after.
    _check(settings)
    require_report()
    digits = load_digits(settings.seed)
    console = console or terminal()
    run = make_run_directory(out, f"digits-{settings.library}")
    run.write_settings(settings)
    built = build(settings.library, settings.seed)
    _say(
        console,
        f"{settings.library} CNN on 8x8 digits, {settings.steps} steps of SGD, learning rate "
        f"{LEARNING_RATE}: about {settings.seconds:.0f} s on two cores",
    )
    view = LiveView(settings.steps, console)
    with checkpointer(run.checkpoints, settings.steps) as save, view:

        def on_step(step: int, params: PyTree, loss: float | None) -> None:
            # The tree is made only at the steps that are saved.
            save(step, functools.partial(built.saved, params))
            view.advance(step, loss)

        train(built.functional, digits, settings, run.root, view, on_step)

    _say(console, "following the kernel through the checkpoints")
    tracked = track(
        run.checkpoints,
        model=built.model,
        train=digits.train_probe(PROBE_PER_CLASS),
        held_out=digits.held_out_probe(PROBE_PER_CLASS),
        loss=LOSS,
        descent=Descent(LEARNING_RATE, momentum=MOMENTUM),
        out=run.root,
        # The bar of training is the one that is shown.
        progress=None if console.is_terminal else False,
    )
    console.print(tracked)
    open_run(run.root).save(run.report)
    _say(console, f"report: {run.report}")
    _say(console, f"all of it, checkpoints and measurements too, is in {run.root}{os.sep}")
    return run


def _check(settings: DemoSettings) -> None:
    """Refuse settings that no run can be made with."""
    if settings.library not in LIBRARIES:
        raise _wrong("--model", settings.library, f"one of {', '.join(LIBRARIES)}")
    if settings.steps < 1:
        raise _wrong("--steps", settings.steps, "a positive number")
    if settings.every < 1:
        raise _wrong("--every", settings.every, "a positive number")


def _wrong(option: str, got: str | int, expected: str) -> errors.InvalidInputError:
    """What is wrong with an option of the command."""
    return errors.InvalidInputError(
        call=f"ntkdiag demo {option} {got}",
        expected=expected,
        got=str(got),
        do="See: ntkdiag demo --help",
    )


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
