"""ntkdiag from a shell: demo, compare, selfcheck, version."""

import importlib
import importlib.util
import inspect
import io
import logging
import pathlib
import sys
import zipfile
import zlib
from typing import Annotated, Any

import typer

from ntkdiag import errors

app = typer.Typer(
    name="ntkdiag",
    help="Training diagnostics for Flax and Equinox models, built on the empirical neural tangent kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
    """Train a small network on digits, watch its kernel, compare first and last checkpoint, write a report."""
    from ntkdiag.demo.demo_settings import DemoSettings
    from ntkdiag.demo.run_through import run_demo

    run_demo(DemoSettings(library=model, steps=steps, every=every, seed=seed), out)


@app.command()
def compare(
    a: Annotated[
        str,
        typer.Argument(metavar="A", help="Orbax checkpoint, step, manager root, or root@step."),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    model: Annotated[
        str,
        typer.Option(
            help="module:attribute or path.py:attribute, a model or a function that makes one. IMPORTS CODE."
        ),
    ],
    data: Annotated[
        pathlib.Path, typer.Option(help=".npz file with the arrays x and, optionally, y.")
    ],
    reduction: Annotated[
        str, typer.Option(help="Kernel: auto, full, mean, trace or sum-of-logits.")
    ] = "auto",
    loss: Annotated[
        str | None,
        typer.Option(
            help="mse, cross_entropy or sigmoid_cross_entropy; without it there are no stability "
            "numbers."
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Of SGD, for the stability margin.")
    ] = None,
    momentum: Annotated[float, typer.Option(help="Of SGD.")] = 0.0,
    history: Annotated[
        pathlib.Path | None, typer.Option(help="Log of ntkdiag.watch to draw in the report.")
    ] = None,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Report to write: .html or .json.")
    ] = None,
) -> None:
    """Compare two Orbax checkpoints of one model through their kernels on a probe.

    --model imports the module it names from the working directory or the environment, which runs its code.
    Nothing is ever imported from a checkpoint.
    """
    from ntkdiag.comparison.compare import compare
    from ntkdiag.comparison.comparison import check_report
    from ntkdiag.descent import Descent
    from ntkdiag.report.comparison_table import terminal

    if out is not None:
        check_report(out, history=history)
    elif history is not None:
        raise _usage("ntkdiag compare --history", "--out with the report to draw it in", "no --out")
    arrays = _read_arrays(data)
    comparison = compare(
        a,
        b,
        model=_imported(model, f"ntkdiag compare --model {model}"),
        x=arrays["x"],
        y=arrays.get("y"),
        reduction=reduction,
        loss=loss,
        descent=Descent(learning_rate, momentum=momentum),
    )
    report = (
        None if out is None else comparison.save(out, history=history)
    )  # first: printing may fail
    console = terminal()
    console.print(comparison)
    if report is not None:
        console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def selfcheck(
    case: Annotated[
        str,
        typer.Argument(
            metavar="CASE",
            help="module:function or path.py:function that returns (model, x) or (model, variables, x), or a "
            "dictionary of these and of options. IMPORTS CODE.",
        ),
    ],
    mode: Annotated[str | None, typer.Option(help="eval, dropout or train.")] = None,
    trainable: Annotated[
        list[str] | None, typer.Option(help="Path glob of what is differentiated; repeatable.")
    ] = None,
    joint: Annotated[bool, typer.Option("--joint", help="Examples are meant to interact.")] = False,
) -> None:
    """Say what is differentiated and what is held fixed, and check that the numbers can be trusted.

    CASE names a module or a file, which is imported and so runs its code. The exit status is 1 when something is wrong.
    """
    from ntkdiag.checking import selfcheck as check
    from ntkdiag.report.comparison_table import terminal

    arguments, options = _case(_imported(case, f"ntkdiag selfcheck {case}"), case)
    given = {"mode": mode, "trainable": trainable, "examples": "joint" if joint else None}
    found = check(*arguments, **options | {name: value for name, value in given.items() if value})
    terminal().print(found)
    if not found.ok:
        raise typer.Exit(1)


@app.command()
def version() -> None:
    """Print the versions of ntkdiag, JAX, Flax, Equinox, Optax, Orbax and Python."""
    from ntkdiag.comparison.versions import installed_versions

    typer.echo("\n".join(installed_versions()))


def main() -> None:
    """Run the command line: errors are one message on standard error, exit status 1, or 2 for wrong usage."""
    # On damaged data Orbax abandons asyncio tasks, which asyncio reports long after our own message.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    for stream in (sys.stdout, sys.stderr):  # what the terminal's encoding lacks is replaced
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except errors.NtkdiagError as error:
        sys.stderr.write(f"ntkdiag: {error}\n")
        sys.exit(1)


def _imported(name: str, call: str) -> Any:
    """Import ``module:attribute`` or ``path.py:attribute``; what can be called without an argument is called."""
    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        raise _usage(call, "module:attribute or path.py:attribute, such as mymodels:net", name)
    found = _module(module, call)
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise _usage(call, "a module with that attribute", f"{error}") from error
    makes_model = (inspect.isroutine(found) or inspect.isclass(found)) and _needs_nothing(found)
    return found() if makes_model else found


def _module(name: str, call: str) -> Any:
    """Import a module by name, or from a file, with the modules next to it in reach as for a script."""
    path = pathlib.Path(name)
    # As `python -m` has it: modules of the working directory. It stays, for what is imported inside of functions.
    sys.path.insert(0, str(path.parent.resolve()) if path.suffix == ".py" else "")
    if path.suffix == ".py":
        if not path.is_file():
            raise _usage(call, "a file that can be imported", f"no file at '{name}'")
        spec: Any = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # dataclasses and pytrees look their module up
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # it is there, and imports what is not
            raise
        raise _usage(call, "a module that can be imported", f"{error}") from error


def _case(found: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Read what a case function returned as the arguments of `selfcheck`."""
    if isinstance(found, dict) and {"model", "x"} <= found.keys():
        options = {
            key: value for key, value in found.items() if key not in ("model", "variables", "x")
        }
        return tuple(found[key] for key in ("model", "variables", "x") if key in found), options
    if isinstance(found, tuple) and len(found) in (2, 3):
        return found, {}
    got = (
        f"a dictionary with {', '.join(map(str, found))}"
        if isinstance(found, dict)
        else type(found).__name__
    )
    expected = "(model, x), (model, variables, x), or a dictionary with model and x"
    raise errors.InvalidInputError(
        call=f"ntkdiag selfcheck {name}",
        expected=f"a function that returns {expected}",
        got=got,
        do="See: ntkdiag selfcheck --help",
    )


def _needs_nothing(function: Any) -> bool:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return all(one.default is not one.empty or one.kind in kinds for one in parameters)


def _read_arrays(path: pathlib.Path) -> dict[str, Any]:
    import numpy as np

    call = f"ntkdiag compare --data {path}"
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            names = list(file)
            arrays = {name: file[name] for name in ("x", "y") if name in names}
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        expected = "an .npz file written by numpy.savez(path, x=..., y=...)"
        got = "an array without a name (.npy)" if isinstance(error, TypeError) else f"{error}"
        raise _usage(call, expected, got) from error
    if "x" not in arrays:
        raise _usage(call, "an array named x in the file", ", ".join(names) or "nothing")
    return arrays


def _usage(call: str, expected: str, got: str) -> errors.InvalidInputError:
    return errors.InvalidInputError(
        call=call, expected=expected, got=got, do=f"See: {' '.join(call.split()[:2])} --help"
    )
