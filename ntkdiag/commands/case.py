"""A case: a model with what is known of its examples and its training, from the user's own code.

    selfcheck CASE      plan CASE      compare A B --case CASE      track RUN --case CASE

1. The name leads to an object, see `user_files`: a model; (model, x); (model, variables, x); or a
   dictionary of `_KEYS` and of options of `functionalize`.
2. Words of the command line take the place of what the case says, one by one.
3. What the case says becomes the arguments of the public functions: a Functional where there are
   options for it, else model and variables as they came.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxtyping import PyTree

from ntkdiag.commands.output import usage_error
from ntkdiag.commands.user_files import named_object, read_pair
from ntkdiag.descent import Descent, DescentLike, as_descent
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.measuring.settings import Optimizer
from ntkdiag.models import functionalize
from ntkdiag.models.functional import Functional
from ntkdiag.probe_batch import Pair

# What a dictionary may hold beside options of `functionalize`.
_KEYS = (
    "model",
    "variables",
    "x",
    "y",
    "train",
    "held_out",
    "loss",
    "descent",
    "optimizer",
    "examples",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """What a case says, for the functions that take a model."""

    call: str  # the command with the name of the case, for messages
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
    def named(name: str, call: str) -> "Case":
        """The case of that name, whose file is imported."""
        call = f"{call} {name}"
        return _read_case(named_object(name, call), call)

    def with_examples(self, train: pathlib.Path | None, held_out: pathlib.Path | None) -> "Case":
        """The case with the examples of .npz files instead of its own."""
        command = " ".join(self.call.split()[:2])
        changes = {}
        if train is not None:
            changes["train"] = read_pair(train, f"{command} --train")
        if held_out is not None:
            changes["held_out"] = read_pair(held_out, f"{command} --held-out")
        return dataclasses.replace(self, **changes)

    def with_training(
        self, loss: str | None, learning_rate: float | None, momentum: float | None = None
    ) -> "Case":
        """The case with another loss and another update rule, as far as they are given."""
        changes = {"learning_rate": learning_rate, "momentum": momentum}
        given = {name: value for name, value in changes.items() if value is not None}
        case = dataclasses.replace(self, loss=loss or self.loss)
        if not given:
            return case
        base = Descent() if self.descent is None else as_descent(self.descent)
        descent = dataclasses.replace(base, **given)
        return dataclasses.replace(case, descent=descent, optimizer=None)

    def with_options(
        self, mode: str | None, trainable: Sequence[str] | None, joint: bool
    ) -> "Case":
        """The case with other options of `functionalize`, as far as they are given."""
        options = dict(self.options)
        if mode:
            options["mode"] = mode
        if trainable:
            options["trainable"] = list(trainable)
        examples = "joint" if joint else self.examples
        return dataclasses.replace(self, options=options, examples=examples)

    @property
    def batch(self) -> PyTree:
        """The examples x: those of `train`, or else those that are held out."""
        self.require_examples()
        pair = self.held_out if self.train is None else self.train
        assert pair is not None  # one of the two is there
        return pair[0]

    def require_examples(self) -> None:
        """Refuse a case without examples."""
        if self.train is None and self.held_out is None:
            raise usage_error(
                self.call,
                "--train FILE.npz, --held-out FILE.npz, or x, train or held_out in the case",
                "neither",
            )

    def functional(self) -> Functional:
        """The model as a Functional, with the options of the case."""
        return functionalize(self.model, self.variables, **self.options)

    def of_checkpoints(self) -> dict[str, Any]:
        """What the case says, as arguments of `compare` and `track`."""
        self.require_examples()
        model, variables = self.model, self.variables
        if self.options:
            model, variables = self.functional(), None
        return {
            "model": model,
            "variables": variables,
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
    by_key = {key: content[key] for key in _KEYS if key in content}
    options = {key: value for key, value in content.items() if key not in _KEYS}
    if "x" in by_key:
        if "train" in by_key:
            raise _no_case(call, "both x and train")
        by_key["train"] = (by_key.pop("x"), by_key.pop("y", None))
    elif "y" in by_key:
        raise _no_case(call, "y without x")
    if is_with_state(by_key["model"]):
        by_key["model"], options["state"] = by_key["model"]
    if by_key["model"] is None or isinstance(by_key["model"], int | float | str):
        raise _no_case(call, f"{type(by_key['model']).__name__} as the model")
    return Case(call=call, **by_key, options=options)


def _no_case(call: str, got: str) -> Exception:
    """The error for what is no case."""
    return usage_error(
        call,
        "a model, (model, x), (model, variables, x), or a dictionary with model and, as far as "
        "there are any, variables, x and y or train and held_out, loss, descent, and options of "
        "functionalize",
        got,
    )
