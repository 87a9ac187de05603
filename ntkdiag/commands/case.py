"""A case: a model with what is known of its examples and its training, from the user's own code.

1. The name `path.py:name` leads to an object; what can be called without an argument makes the
   object, and is called. Code is run as `python path.py` would do it.
2. The object is a model; (model, x); (model, variables, x); or a dictionary of fields of `Case`, of
   x and y, and of options of `functionalize`.
3. --train and --held-out take the place of the examples of the case.

A folder may hold files that are called like installed modules, such as `scipy.py`. So what is next
to the file is in reach after all that is installed, while the file is imported and makes the
object. Then the path is what it was.
"""

import contextlib
import dataclasses
import importlib.util
import inspect
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import PyTree

from ntkdiag.commands.options import usage_error
from ntkdiag.descent import DescentLike
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.measuring.settings import Optimizer
from ntkdiag.models import functionalize
from ntkdiag.models.functional import Functional
from ntkdiag.probe_batch import Pair


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """What a case says, for the functions that take a model."""

    model: Any  # of any library
    variables: PyTree = None  # what a model needs beside itself; None where it carries that
    train: Pair | None = None  # examples that are trained on, (x, y); None without
    held_out: Pair | None = None  # examples that are not, likewise
    loss: LossLike | None = None  # the loss that is trained; None where it is not said
    descent: DescentLike | None = None  # how it is trained; None where it is not said
    # The Optax optimizer that trains, in its place; `compare` and `track` read it.
    optimizer: Optimizer | None = None
    # "joint" where examples are meant to interact; None where it is not said.
    examples: Literal["independent", "joint"] | None = None
    # For `functionalize`: `mode`, `trainable`, `output` and others.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @staticmethod
    def named(
        name: str,
        call: str,
        train: pathlib.Path | None = None,
        held_out: pathlib.Path | None = None,
    ) -> "Case":
        """The case of that name, whose file is imported, with examples of .npz files if given."""
        changes = {}
        command = " ".join(call.split()[:2])
        if train is not None:
            changes["train"] = _read_pair(train, f"{command} --train")
        if held_out is not None:
            changes["held_out"] = _read_pair(held_out, f"{command} --held-out")
        call = f"{call} {name}"
        case = dataclasses.replace(_read_case(_named_object(name, call), call), **changes)
        if case.train is None and case.held_out is None:
            raise usage_error(
                call,
                "--train FILE.npz, --held-out FILE.npz, or x, train or held_out in the case",
                "neither",
            )
        return case

    @property
    def batch(self) -> PyTree:
        """The examples x: those of `train`, or else those that are held out."""
        pair = self.held_out if self.train is None else self.train
        assert pair is not None  # one of the two is not None
        return pair[0]

    def functional(self) -> Functional:
        """The model as a Functional, with the options of the case."""
        return functionalize(self.model, self.variables, **self.options)

    def of_checkpoints(self) -> dict[str, Any]:
        """What the case says, as arguments of `compare` and `track`."""
        has_options = self.variables is not None or self.options
        return {
            "model": self.functional() if has_options else self.model,
            "train": self.train,
            "held_out": self.held_out,
            "loss": self.loss,
            "descent": self.descent,
            "optimizer": self.optimizer,
        }


def _read_case(content: Any, call: str) -> Case:
    """What the user's function returned, anything at all, in the words of a `Case`."""
    from ntkdiag.comparison.sources import is_with_state

    # A stateful model of Equinox is a pair itself.
    if isinstance(content, tuple) and not is_with_state(content):
        if len(content) not in (2, 3):
            raise _no_case(call, f"a tuple of {len(content)}")
        *model_and_variables, x = content
        names = ("model", "variables")
        content = {**dict(zip(names, model_and_variables, strict=False)), "x": x}
    if not isinstance(content, dict):
        content = {"model": content}
    if "model" not in content:
        raise _no_case(call, f"a dictionary with {', '.join(map(str, content)) or 'nothing'}")
    # All other entries are options of `functionalize`.
    keys = {"x", "y", *(field.name for field in dataclasses.fields(Case))} - {"options"}
    by_key = {key: value for key, value in content.items() if key in keys}
    options = {key: value for key, value in content.items() if key not in keys}
    if "x" in by_key:
        if "train" in by_key:
            raise _no_case(call, "both x and train")
        by_key["train"] = (by_key.pop("x"), by_key.pop("y", None))
    elif "y" in by_key:
        raise _no_case(call, "y without x")
    if is_with_state(by_key["model"]):
        by_key["model"], options["state"] = by_key["model"]
    return Case(**by_key, options=options)


def _no_case(call: str, got: str) -> Exception:
    return usage_error(
        call,
        "a model, (model, x), (model, variables, x), or a dictionary with model and, as far as "
        "there are any, variables, x and y or train and held_out, loss, descent, and options of "
        "functionalize",
        got,
    )


def _named_object(name: str, call: str) -> object:
    """The object of that name, or what it makes."""
    file, _, attribute = name.rpartition(":")
    path = pathlib.Path(file)
    if path.suffix != ".py" or not attribute:
        raise usage_error(call, "path.py:name, such as net.py:case", name)
    if not path.is_file():
        raise usage_error(call, "a file that can be imported", f"no file at '{path}'")
    with _in_reach(path.parent.resolve()):
        module = _imported(path)
        if not hasattr(module, attribute):
            got = f"{path}, which has no {attribute!r}"
            raise usage_error(call, "a file with an object of that name", got)
        value: Any = getattr(module, attribute)
        # Models are callable, too: only functions and classes count as factories.
        is_maker = inspect.isroutine(value) or inspect.isclass(value)
        return value() if is_maker and _needs_no_argument(value) else value


@contextlib.contextmanager
def _in_reach(folder: pathlib.Path) -> Iterator[None]:
    """Where modules of a folder can be imported, after all that are installed."""
    entry = os.fspath(folder)
    sys.path.append(entry)
    try:
        yield
    finally:
        # An entry that the module made itself stays.
        if entry in sys.path:
            last = len(sys.path) - 1 - sys.path[::-1].index(entry)
            del sys.path[last]


def _imported(path: pathlib.Path) -> object:
    """Run a file as the module of its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # every .py file has one
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pytrees look their module up
    spec.loader.exec_module(module)
    return module


def _needs_no_argument(function: Callable[..., object]) -> bool:
    """Whether every parameter of a function may be left out."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    return True


def _read_pair(path: pathlib.Path, call: str) -> Pair:
    """The examples of a file, without pickle: x and, as far as they are there, y and weights."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("x", "y", "weights") if name in file}
    except Exception as error:  # whatever NumPy raises on a file of another kind
        raise usage_error(
            f"{call} {path}",
            "an .npz file written by numpy.savez(path, x=..., y=...), with weights=... if there "
            "are some",
            f"{error}",
        ) from error
    if "x" not in arrays:
        raise usage_error(f"{call} {path}", "an array named x in the file", "none")
    pair = (arrays["x"], arrays.get("y"))
    return (*pair, arrays["weights"]) if "weights" in arrays else pair
