"""`python -m benchmarks.way`: the files and functions of ntkdiag that one cold call passes.

What somebody has to read who follows a call from its first line to its result. Each call runs in a
process of its own, in which nothing has been traced, under a profiler that notes every function of
the package which is entered:

    counted        functions and methods with a name, nested ones and properties too, once each
    not counted    lambdas and comprehensions; bodies of modules and classes, and what runs while a
                   file is imported; anything outside of the package
"""

import argparse
import inspect
import json
import pathlib
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from rich.console import Console
from rich.table import Table

import ntkdiag

_PACKAGE = pathlib.Path(ntkdiag.__file__).parent
# What says what an argument of `compare` is: once of A, of B and of the model.
CLASSIFIES = "comparison/sources.py", "classified"


class Passed(NamedTuple):
    """A function that was passed: its file below the package, its name, and how often."""

    file: str
    name: str
    times: int


def passed(call: Callable[[], Any]) -> list[Passed]:
    """The package's own functions that a call enters, in the order in which it first does."""
    times: Counter[CodeType] = Counter()
    n_imports = 0  # files of the package that are being imported

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal n_imports
        code = frame.f_code
        if event not in ("call", "return") or not _is_ours(code):
            return
        if code.co_name == "<module>":
            n_imports += 1 if event == "call" else -1
        elif event == "call" and not n_imports and _has_a_name(code):
            times[code] += 1

    threading.setprofile(note)  # in threads that the call starts
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return [Passed(_file(code), code.co_qualname, count) for code, count in times.items()]


def _is_ours(code: CodeType) -> bool:
    """Whether code is of a file of the package."""
    return code.co_filename.startswith(f"{_PACKAGE}/")


def _file(code: CodeType) -> str:
    """The file of code, below the package."""
    return pathlib.Path(code.co_filename).relative_to(_PACKAGE).as_posix()


def _has_a_name(code: CodeType) -> bool:
    """Whether code is a function of a name: no lambda, no comprehension, no body of a class."""
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    return is_function and not code.co_name.startswith("<")


def ntk_of_a_function() -> Callable[[], Any]:
    """`ntk` of a plain function, which is what a linen module has as `apply`."""
    model, params, x, _ = _problem()
    ntk = ntkdiag.ntk
    return lambda: ntk(model.apply, params, x)


def ntk_of_a_model() -> Callable[[], Any]:
    """`ntk` of what `functionalize` makes of that module, as the README has it."""
    model, params, x, _ = _problem()
    f, params = ntkdiag.functionalize(model, params)
    ntk = ntkdiag.ntk
    return lambda: ntk(f, params, x)


def compare_of_checkpoints() -> Callable[[], Any]:
    """`compare` of two sets of parameters on examples of both kinds, as the README has it."""
    model, params, x, y = _problem()
    later = jax.tree.map(lambda leaf: 1.1 * leaf + 0.01, params)
    options = {
        "model": ntkdiag.functionalize(model, params),
        "train": (x[:64], y[:64]),
        "held_out": (x[64:], y[64:]),
        "loss": "cross_entropy",
    }
    compare = ntkdiag.compare
    return lambda: compare(params, later, **options)


CALLS = {
    "ntk of a function": ntk_of_a_function,
    "ntk of a functionalized model": ntk_of_a_model,
    "compare": compare_of_checkpoints,
}


def _problem() -> tuple[nn.Module, Any, jax.Array, jax.Array]:
    """The network of the README, its parameters, and 128 examples with classes."""
    model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(3)])
    x = jax.random.normal(jax.random.key(0), (128, 8))
    return model, model.init(jax.random.key(1), x), x, jnp.argmax(x[:, :3], axis=1)


def main(argv: list[str] | None = None) -> int:
    """Print the table, and with `--list` every function that was passed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.way", description=__doc__)
    parser.add_argument("--list", action="store_true", help="the functions by file, too")
    parser.add_argument("--one", choices=CALLS, help="this call alone, here, as JSON")
    arguments = parser.parse_args(argv)
    if arguments.one:
        print(json.dumps(passed(CALLS[arguments.one]())))
        return 0
    table = Table("cold call", "files", "functions", "arguments classified")
    ways = {name: _in_a_fresh_process(name) for name in CALLS}
    for name, way in ways.items():
        n_files = len({one.file for one in way})
        classified = sum(one.times for one in way if (one.file, one.name) == CLASSIFIES)
        table.add_row(name, str(n_files), str(len(way)), str(classified or ""))
    console = Console()
    console.print(table)
    if arguments.list:
        for name, way in ways.items():
            console.print(f"\n[bold]{name}[/bold]")
            for line in _by_file(way):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def _in_a_fresh_process(name: str) -> list[Passed]:
    """What a call passes in a process that has traced nothing."""
    command = [sys.executable, "-m", "benchmarks.way", "--one", name]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [Passed(*one) for one in json.loads(result.stdout.splitlines()[-1])]


def _by_file(way: list[Passed]) -> list[str]:
    """The functions of each file in a line, in the order of the call."""
    names: dict[str, list[str]] = {}
    for one in way:
        names.setdefault(one.file, []).append(one.name)
    return [f"{file} ({len(inside)}): {', '.join(inside)}" for file, inside in names.items()]


if __name__ == "__main__":
    sys.exit(main())
