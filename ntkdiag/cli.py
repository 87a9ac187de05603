"""ntkdiag from a shell: demo, compare, track, selfcheck, version.

A command reads its words into the arguments of one public function, calls that, and prints what it
returns. Models and data come from the user's own files:

1. ``module:attribute`` or ``path.py:attribute`` is imported, as `python -m` or `python path.py`
   would; what can be called without an argument makes the model, and is called.
2. Arrays are read from an .npz file, without pickle.

What is wrong with either is one message on standard error. Errors inside the user's own code keep
their traceback.
"""

import importlib
import importlib.util
import inspect
import io
import json
import logging
import pathlib
import sys
import zipfile
import zlib
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import numpy as np
import typer

import ntkdiag
from ntkdiag import errors
from ntkdiag.probe_batch import Pair

# What NumPy raises on a file that is no .npz archive of plain arrays.
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)

# Options that several commands have.
ModelOption: TypeAlias = Annotated[
    str,
    typer.Option(
        help="module:attribute or path.py:attribute, a model or a function that makes one. "
        "IMPORTS CODE."
    ),
]
ReductionOption: TypeAlias = Annotated[
    str, typer.Option(help="Kernel: auto, full, mean, trace or sum-of-logits.")
]
LearningRateOption: TypeAlias = Annotated[
    float | None, typer.Option(help="Of SGD, for the stability margin.")
]

app = typer.Typer(
    name="ntkdiag",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> bool:
    """Print the version and end, where `--version` stands before any command."""
    if wanted:
        typer.echo(f"ntkdiag {ntkdiag.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def every_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit; the command version prints those of JAX and others.",
        ),
    ] = False,
) -> None:
    """Training diagnostics for Flax and Equinox models, on the empirical neural tangent kernel."""


@app.command()
def demo(
    model: Annotated[
        str, typer.Option(help="Library of the model: linen, equinox or nnx.")
    ] = "linen",
    steps: Annotated[int, typer.Option(help="Number of training steps.")] = 300,
    every: Annotated[int, typer.Option(help="Steps between two measurements of the kernel.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of data split, initialisation and batches.")] = 0,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Folder to make; default: a new one under runs/.")
    ] = None,
) -> None:
    """Train a small network on digits, watch its kernel, and compare first and last checkpoint.

    The comparison is written into a report.
    """
    from ntkdiag.demo.demo_settings import DemoSettings
    from ntkdiag.demo.run_through import run_demo

    settings = DemoSettings(library=model, steps=steps, every=every, seed=seed)
    run_demo(settings, out)


@app.command()
def compare(
    a: Annotated[
        str,
        typer.Argument(metavar="A", help="Orbax checkpoint, step, manager root, or root@step."),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    model: ModelOption,
    train: Annotated[
        pathlib.Path | None,
        typer.Option(
            help=".npz file with examples of the training set: arrays x and, optionally, y."
        ),
    ] = None,
    held_out: Annotated[
        pathlib.Path | None,
        typer.Option(help=".npz file with examples that were not trained on: x and y."),
    ] = None,
    reduction: ReductionOption = "auto",
    loss: Annotated[
        str | None,
        typer.Option(
            help="mse, cross_entropy or sigmoid_cross_entropy; without it there are no stability "
            "numbers."
        ),
    ] = None,
    learning_rate: LearningRateOption = None,
    momentum: Annotated[float, typer.Option(help="Of SGD.")] = 0.0,
    history: Annotated[
        pathlib.Path | None, typer.Option(help="Log of ntkdiag.watch to draw in the report.")
    ] = None,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Report to write: .html or .json.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print all tables and notes, not the first screen.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Say what the numbers mean; above 100 columns it stands beside them."
        ),
    ] = False,
) -> None:
    """Compare two Orbax checkpoints of one model through their kernels on a batch of examples.

    --train or --held-out, or both, say on which: stability and drift are of the first,
    alignment with the labels of the second.

    --model imports the module it names from the working directory or the environment,
    which runs its code. Nothing is ever imported from a checkpoint.
    """
    from ntkdiag.comparison.compare import compare
    from ntkdiag.comparison.comparison import check_report
    from ntkdiag.descent import Descent
    from ntkdiag.report.comparison_table import Screen, terminal

    # What cannot be written is refused before anything is computed.
    if out is not None:
        check_report(out, history=history)
    elif history is not None:
        raise _usage("ntkdiag compare --history", "--out with the report to draw it in", "no --out")
    if train is None and held_out is None:
        raise _usage("ntkdiag compare", "--train FILE.npz, --held-out FILE.npz, or both", "neither")
    comparison = compare(
        a,
        b,
        model=_imported(model, f"ntkdiag compare --model {model}"),
        train=_read_pair(train, "--train", "compare"),
        held_out=_read_pair(held_out, "--held-out", "compare"),
        reduction=reduction,
        loss=loss,
        descent=Descent(learning_rate, momentum=momentum),
    )
    # The report first: printing may fail.
    report = None
    if out is not None:
        report = comparison.save(out, history=history)
    console = terminal()
    more = _how_to_see_more(explain=explain, has_report=report is not None)
    console.print(Screen(comparison, everything=everything, explain=explain, more=more))
    if report is not None:
        console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def track(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Root of an Orbax CheckpointManager.")],
    model: ModelOption,
    train: Annotated[
        pathlib.Path | None, typer.Option(help=".npz file with training examples: x and y.")
    ] = None,
    held_out: Annotated[
        pathlib.Path | None, typer.Option(help=".npz file with examples that were not trained on.")
    ] = None,
    reduction: ReductionOption = "auto",
    loss: Annotated[
        str | None, typer.Option(help="mse, cross_entropy or sigmoid_cross_entropy.")
    ] = None,
    learning_rate: LearningRateOption = None,
    last: Annotated[int | None, typer.Option(help="Only the last so many checkpoints.")] = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Folder to store the results in; the next call goes on from there."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Follow the kernel through all checkpoints of a run: a line for each, and all pairs of them.

    --model imports the module it names, which runs its code.
    """
    from ntkdiag.comparison.track import track as track_run
    from ntkdiag.report.comparison_table import terminal

    if train is None and held_out is None:
        raise _usage("ntkdiag track", "--train FILE.npz, --held-out FILE.npz, or both", "neither")
    tracked = track_run(
        run,
        model=_imported(model, f"ntkdiag track --model {model}"),
        train=_read_pair(train, "--train", "track"),
        held_out=_read_pair(held_out, "--held-out", "track"),
        reduction=reduction,
        loss=loss,
        descent=learning_rate,
        last=last,
        out=out,
    )
    if as_json:
        typer.echo(json.dumps(tracked.to_dict(), allow_nan=False))
    else:
        terminal().print(tracked)


@app.command()
def selfcheck(
    case: Annotated[
        str,
        typer.Argument(
            metavar="CASE",
            help="module:function or path.py:function that returns (model, x) or "
            "(model, variables, x), or a dictionary of these and of options. IMPORTS CODE.",
        ),
    ],
    mode: Annotated[str | None, typer.Option(help="eval, dropout or train.")] = None,
    trainable: Annotated[
        list[str] | None, typer.Option(help="Path glob of what is differentiated; repeatable.")
    ] = None,
    joint: Annotated[bool, typer.Option("--joint", help="Examples are meant to interact.")] = False,
) -> None:
    """Say what is differentiated and what is held fixed, and check that the numbers can be trusted.

    CASE names a module or a file, which is imported and so runs its code. The exit status is 1 when
    something is wrong.
    """
    from ntkdiag.checking import selfcheck as check
    from ntkdiag.report.comparison_table import terminal

    arguments, options = _read_case(_imported(case, f"ntkdiag selfcheck {case}"), case)
    # What stands on the command line wins over what the case says.
    if mode:
        options["mode"] = mode
    if trainable:
        options["trainable"] = trainable
    if joint:
        options["examples"] = "joint"
    result = check(*arguments, **options)
    terminal().print(result)
    if not result.ok:
        raise typer.Exit(1)


@app.command()
def version() -> None:
    """Print the versions of ntkdiag, JAX, Flax, Equinox, Optax, Orbax and Python."""
    from ntkdiag.comparison.versions import installed_versions

    typer.echo("\n".join(installed_versions()))


def main() -> None:
    """Run the command line: an error is one message on standard error and exit status 1.

    Wrong usage has exit status 2.
    """
    # On damaged data Orbax abandons asyncio tasks, which asyncio reports long after our message.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    # Characters that the terminal's encoding lacks are replaced.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except errors.NtkdiagError as error:
        sys.stderr.write(f"ntkdiag: {error}\n")
        sys.exit(1)


def _how_to_see_more(*, explain: bool, has_report: bool) -> str:
    """The options that show more, without those that were given."""
    options = ["--all"]
    if not explain:
        options.append("--explain for what the numbers mean")
    if not has_report:
        options.append("--out report.html for a page with figures")
    return f"See {', '.join(options)}."


def _imported(name: str, call: str) -> object:
    """The object that ``module:attribute`` or ``path.py:attribute`` names, or what it makes."""
    module_name, _, attribute_path = name.rpartition(":")
    if not module_name or not attribute_path:
        raise _usage(call, "module:attribute or path.py:attribute, such as mymodels:net", name)
    value: Any = _import_module(module_name, call)
    try:
        for attribute in attribute_path.split("."):
            value = getattr(value, attribute)
    except AttributeError as error:
        raise _usage(call, "a module with that attribute", f"{error}") from error
    # A model can be called as well: only functions and classes are taken for makers of one.
    is_maker = inspect.isroutine(value) or inspect.isclass(value)
    if is_maker and _needs_no_argument(value):
        return value()
    return value


def _import_module(name: str, call: str) -> object:
    """Import a module by name, or from a file, with the modules next to it in reach."""
    # The search path stays changed, for what the module imports inside of its functions.
    path = pathlib.Path(name)
    if path.suffix == ".py":
        sys.path.insert(0, str(path.parent.resolve()))
        return _import_file(path, call)
    sys.path.insert(0, "")  # the working directory
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Is it this module that is missing, or a package it is in? If not, it is there, and imports
        # one that is not.
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise _usage(call, "a module that can be imported", f"{error}") from error


def _import_file(path: pathlib.Path, call: str) -> object:
    """Run a file as the module of its name."""
    if not path.is_file():
        raise _usage(call, "a file that can be imported", f"no file at '{path}'")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # every .py file has one
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pytrees look their module up
    spec.loader.exec_module(module)
    return module


def _needs_no_argument(function: Callable[..., object]) -> bool:
    """Whether every parameter of a function may be left out."""
    for parameter in inspect.signature(function).parameters.values():
        takes_any_number = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not takes_any_number:
            return False
    return True


def _read_case(case: object, name: str) -> tuple[tuple[object, ...], dict[str, Any]]:
    """Positional arguments and options of `selfcheck`, from what a case function returned."""
    if isinstance(case, dict) and {"model", "x"} <= case.keys():
        options = dict(case)
        arguments = []
        for key in ("model", "variables", "x"):
            if key in options:
                arguments.append(options.pop(key))
        return tuple(arguments), options
    if isinstance(case, tuple) and len(case) in (2, 3):
        return case, {}
    got = type(case).__name__
    if isinstance(case, dict):
        got = f"a dictionary with {', '.join(map(str, case))}"
    raise errors.InvalidInputError(
        call=f"ntkdiag selfcheck {name}",
        expected="a function that returns (model, x), (model, variables, x), or a dictionary with "
        "model and x",
        got=got,
        do="See: ntkdiag selfcheck --help",
    )


def _read_pair(path: pathlib.Path | None, option: str, command: str) -> Pair | None:
    """The arrays x and, if it is there, y of an .npz file."""
    if path is None:
        return None
    call = f"ntkdiag {command} {option} {path}"
    arrays = {}
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            names = list(file)
            for name in ("x", "y"):
                if name in names:
                    arrays[name] = file[name]
    except _UNREADABLE as error:
        expected = "an .npz file written by numpy.savez(path, x=..., y=...)"
        got = f"{error}"
        if isinstance(error, TypeError):  # an array of its own is no context manager
            got = "an array without a name (.npy)"
        raise _usage(call, expected, got) from error
    if "x" not in arrays:
        raise _usage(call, "an array named x in the file", ", ".join(names) or "nothing")
    return arrays["x"], arrays.get("y")


def _usage(call: str, expected: str, got: str) -> errors.InvalidInputError:
    """The error for words of a command that cannot be used."""
    command = " ".join(call.split()[:2])
    return errors.InvalidInputError(
        call=call, expected=expected, got=got, do=f"See: {command} --help"
    )
