"""The two things to be compared, brought to one form: a Functional with its name and fixed state.

A side is a path, values in memory, or a model that knows its own function. Values are put into the
model that is common to both sides (see `restore`); a model keeps its own. Both sides have to agree
in paths, shapes and dtypes of their parameters, and where their fixed arrays agree, too, they share
one function, which is then compiled once.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import display, errors
from ntkdiag.arrays import as_array
from ntkdiag.checkpoints.contents import read_contents, strip_value_level
from ntkdiag.checkpoints.location import finished_steps
from ntkdiag.checkpoints.names import (
    NUMBER,
    OPTIMIZER_STATES,
    PARAMETERS,
    SELDOM_COLLECTIONS,
    Keys,
)
from ntkdiag.comparison.restore import (
    TWO_MODELS,
    Leaves,
    Placed,
    Template,
    place,
    same_leaves,
    structure_error,
)
from ntkdiag.comparison.sources import Classified, Model, classified
from ntkdiag.comparison.stored_checkpoint import STREAM
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import differences, leaves_by_path
from ntkdiag.optimizer.saved_state import Optimizer, OptimizerState, restored_state
from ntkdiag.path_argument import as_path
from ntkdiag.runs.run_stream import RunStream

# "root@100": step 100 of the checkpoints in `root`.
_AT_STEP = re.compile(rf"(?P<root>.+)@(?P<step>{NUMBER})")


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    label: str  # its name in tables
    functional: Functional  # model and parameters
    fixed_state: str  # where the arrays that are not parameters come from, in words
    path: str | None  # the checkpoint path as given; None for values in memory
    step: int | None  # step number, where the checkpoint has one
    # Dtypes of the parameters as they came, before JAX could narrow them.
    saved_dtypes: tuple[str, ...]
    shares_model: bool  # whether the values were put into the model common to both sides
    # Paths of fixed arrays that this side does not hold: those of the model stand in.
    lacking: tuple[str, ...] = ()
    # Dictionaries beside its parameters that the model does not read, by name.
    left_out: tuple[str, ...] = ()
    # Path of the array that is compared, where the model returns no array by itself.
    output: str = ""
    set_aside: tuple[str, ...] = ()  # paths of what else the model returns
    optimizer_state: PyTree = None  # the state of its optimizer, as it came; None where it has none
    top_level: str = ""  # what the side holds, by the names at its top, for a message

    @property
    def model(self) -> str:
        """The model in words: its library and its name."""
        return f"{self.functional.library} {self.functional.name}".strip()

    @property
    def mode(self) -> str:
        """The mode of the model."""
        return self.functional.mode

    @property
    def parameter_dtypes(self) -> list[str]:
        """The dtypes that it is computed with, sorted."""
        return sorted({str(leaf.dtype) for leaf in jax.tree.leaves(self.functional.params)})

    @property
    def n_parameters(self) -> int:
        """The number of parameters."""
        return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self.functional.params))


@dataclasses.dataclass(frozen=True)
class _Values:
    """Parameters and collections as they came, and what the checkpoint says about itself."""

    params: PyTree
    collections: dict[str, PyTree]
    path: str | None = None
    step: int | None = None
    label: str | None = None
    optimizer_state: PyTree = None
    top_level: str = ""
    # Keys that lead to the parameters in a checkpoint; None for values in memory.
    at: Keys | None = None


def read_side(
    source: Classified, template: Template, *, name: str, label: str | None = None
) -> Side:
    """Bring one argument of `compare` to a Functional; its parameters are known to be finite.

    `name` is ``"A"`` or ``"B"``: the label where neither `label` nor a path gives one.
    """
    # A model is taken as it is, and values are put into the model that both sides share; so are
    # those of a model, where a Functional was given whose options hold for it.
    brings_function = source.is_model and not _holds_parameters_only(source, template)
    if (brings_function and template.options is None) or source.kind == "functional":
        functional = source.functional()
        placed = Placed(functional, "its own" if functional.fixed else "none")
        values = _Values(functional.params, {}, top_level="a model")
    else:
        values = _read_values(source, template)
        _require_finite(leaves_by_path(values.params), label)
        _require_model(template.model)
        placed = place(template, values.params, values.collections, values.at)
        # A history that nobody reads may hold NaN.
        for collection, tree in values.collections.items():
            if collection not in placed.left_out:
                _require_finite(leaves_by_path({collection: tree}), label)
    _require_finite(leaves_by_path(placed.functional.params), label)
    return Side(
        label=display.printable(label or values.label or name),
        functional=placed.functional,
        fixed_state=placed.fixed_state,
        path=values.path,
        step=values.step,
        saved_dtypes=_floating_dtypes(values.params),
        shares_model=not brings_function,
        lacking=placed.lacking,
        left_out=tuple(name for name in placed.left_out if name not in SELDOM_COLLECTIONS),
        optimizer_state=(
            values.optimizer_state if source.optimizer_state is None else source.optimizer_state
        ),
        top_level=values.top_level,
    )


def split_step(source: str | os.PathLike[str]) -> tuple[str, int | None]:
    """A path and the step it names.

    ``root@100`` is step 100 of a manager root, unless there is a path of that name.
    """
    path = os.fspath(source)
    at_step = _AT_STEP.fullmatch(path)
    if at_step is None or os.path.exists(os.path.expanduser(path)):
        return path, None
    return at_step["root"], int(at_step["step"])


def require_comparable(a: Side, b: Side) -> tuple[Side, Side]:
    """Refuse two sides whose parameters differ in structure; all differences are listed.

    Where their fixed arrays are the same they have one function afterwards.
    """
    lines = differences(a.functional.params, b.functional.params)
    if lines:
        are_two_models = not a.shares_model and not b.shares_model
        raise structure_error(lines, TWO_MODELS if are_two_models else "")

    # With the same fixed arrays, one function for both sides: it is compiled once.
    share_model = a.shares_model and b.shares_model
    if share_model and same_leaves(a.functional.fixed, b.functional.fixed):
        functional = a.functional.with_params(b.functional.params, check=False)
        b = dataclasses.replace(b, functional=functional)
    return a, b


def refuse_run_directory(source: Classified) -> None:
    """Refuse a run directory of `track`, which holds kernels and outputs but no parameters."""
    if source.kind != "path":
        return
    path, _ = split_step(source.value)
    root = as_path(path)
    if RunStream(root, STREAM).path.is_file() and not finished_steps(root):
        raise errors.CheckpointError(
            expected="a checkpoint, which holds parameters",
            got=f"{path!r}, a run directory of track, which holds kernels and outputs alone",
            do=f'Write ntkdiag.open_run({path!r}).tracked.matrix("distance_centred").',
        )


def require_one_model(model: Model) -> Classified:
    """The model that both sides share; a pair of models is refused."""
    given = classified(model)
    if given.kind == "other" and isinstance(model, tuple | list):
        raise errors.InvalidInputError(
            argument="model=...",
            expected="one model, whose parameters both sides hold",
            got=f"a {type(model).__name__} of {len(model)}",
            do=TWO_MODELS,
        )
    return given


def require_two(a: Side, b: Side) -> tuple[Side, Side]:
    """Refuse two sides that are one checkpoint; give them labels that tell them apart."""
    if _are_one_checkpoint(a, b):
        raise errors.InvalidInputError(
            expected="two different checkpoints",
            got=f"{a.path} {a.label} twice",
            do='Two steps of one manager root are "root@0" and "root@100".',
        )
    if a.label == b.label:
        a = dataclasses.replace(a, label=f"A: {a.label}")
        b = dataclasses.replace(b, label=f"B: {b.label}")
    return a, b


def state_of(side: Side, optimizer: Optimizer) -> OptimizerState | None:
    """The optimizer's state of one side; None where it has none."""
    params = side.functional.params
    return restored_state(optimizer, params, side.optimizer_state, side.label)


def require_some_state(sides: Sequence[Side], states: Sequence[OptimizerState | None]) -> None:
    """Refuse sides none of which has an optimizer's state, where one was asked for."""
    if any(state is not None for state in states):
        return
    held = [f"{side.label}: {side.top_level or 'parameters'}" for side in sides]
    raise errors.InvalidInputError(
        argument="optimizer=...",
        expected="the state of the optimizer beside the parameters, as opt_state, optimizer, "
        "optimizer_state or optim, or a pair (parameters, state)",
        got="; ".join(dict.fromkeys(held)),
        do="Pass descent=ntkdiag.Descent(...), which states the update rule, or checkpoints with "
        "the state.",
    )


def _read_values(source: Classified, template: Template) -> _Values:
    """Parameters and collections of a checkpoint, of a tree in memory, or of a model."""
    kind, value = source.kind, source.value
    if kind == "path":
        path, step = split_step(value)
        contents = read_contents(
            path,
            step,
            parameter_names=template.parameter_names,
            skeleton=template.skeleton,
            model=template,
            with_optimizer=template.with_optimizer,
        )
        location = contents.location
        params, optimizer_state = contents.params, contents.optimizer_state
        if template.with_optimizer and _is_saved_pair(params, template):
            params, optimizer_state = params
        return _Values(
            params,
            contents.collections,
            path,
            location.step,
            location.label,
            optimizer_state,
            contents.top_level,
            contents.at,
        )
    if kind == "stateful":
        module, state = value
        return _Values(_arrays_of_module(module), {"state": state})
    if kind == "nnx":
        return _Values(_without_value_level(sys.modules["flax.nnx"].state(value)), {})
    # f(params, x) takes what it is given, be it a variables dictionary or a module.
    takes_any_tree = template.given.kind == "function"
    if kind == "equinox" and not takes_any_tree:
        return _Values(_arrays_of_module(value), {})
    if kind == "adapter":
        functional = source.functional()
        return _Values({**functional.fixed, **leaves_by_path(functional.params)}, {})
    if kind == "mapping" and takes_any_tree and not _has_optimizer(value):
        return _Values(value, {})
    if kind == "mapping":
        fits = template.fits(_without_value_level(value))
        return _values_of_mapping(value if fits else _nested(value), template)
    if hasattr(value, "params"):
        return _values_of_mapping(_fields_of(value), template)
    return _Values(_without_value_level(value), {})


def _has_optimizer(tree: Mapping[str, PyTree]) -> bool:
    """Whether a dictionary holds the state of an optimizer beside the parameters."""
    has_params = any(name in tree for name in PARAMETERS)
    return has_params and any(name in tree for name in OPTIMIZER_STATES)


def _is_saved_pair(saved: PyTree, template: Template) -> bool:
    """Whether a whole checkpoint is a pair, of the parameters of the model and something else."""
    if template.functional is None or not isinstance(saved, list) or len(saved) != 2:
        return False
    return leaves_by_path(saved[0]).keys() == leaves_by_path(template.functional.params).keys()


def _values_of_mapping(tree: Mapping[str, PyTree], template: Template) -> _Values:
    """A dictionary: parameters and what is beside them by name, or parameters alone.

    What fits the model as a whole is not taken apart, whatever is called how in it.
    """
    if template.fits(_without_value_level(tree)):
        return _Values(_without_value_level(tree), {}, top_level=", ".join(map(str, tree)))
    if "params" not in tree and _has_optimizer(tree):
        tree = {"params" if name == "model" else name: tree[name] for name in tree}
    if "params" not in tree:
        return _Values(_without_value_level(tree), {}, top_level=", ".join(map(str, tree)))
    collections = {}
    for name, subtree in tree.items():
        is_collection = isinstance(subtree, Mapping) or name == "state"
        is_filled = len(jax.tree.leaves(subtree)) > 0
        if not is_collection or not is_filled or name == "params":
            continue
        collection = _without_value_level(subtree)
        if name not in SELDOM_COLLECTIONS or template.may_read(name, collection):
            collections[name] = collection
    states = []
    for name in OPTIMIZER_STATES:
        if name not in collections and tree.get(name) is not None:
            states.append(tree[name])
    about = {
        "optimizer_state": states[0] if states else None,
        "top_level": ", ".join(map(str, tree)),
    }
    # Some keep all the variables of a linen module under `params`.
    params = tree["params"]
    if isinstance(params, Mapping) and "params" in params and not template.fits(params):
        variables = _values_of_mapping(params, template)
        return _Values(variables.params, {**collections, **variables.collections}, **about)
    return _Values(_without_value_level(params), collections, **about)


def _nested(tree: Mapping[str, PyTree]) -> Mapping[str, PyTree]:
    """A flat dictionary of arrays with dots in their names (a state_dict) as nested ones."""
    names_have_dots = any("." in str(name) for name in tree)
    if not names_have_dots or not all(hasattr(leaf, "shape") for leaf in tree.values()):
        return tree
    nested: dict[str, PyTree] = {}
    for name, leaf in tree.items():
        *parents, last = name.split(".")
        branch = nested
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = as_array(leaf, name)
    return nested


def _fields_of(state: Any) -> dict[str, PyTree]:
    """The fields of a train state by name; users add those for batch statistics and the like."""
    if dataclasses.is_dataclass(state):
        return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    if hasattr(state, "_asdict"):  # a named tuple
        return state._asdict()
    names = ("batch_stats", "opt_state")
    return {"params": state.params, **{name: getattr(state, name, None) for name in names}}


def _arrays_of_module(module: Any) -> PyTree:
    """An Equinox module with its arrays alone."""
    equinox = sys.modules["equinox"]
    return equinox.filter(module, equinox.is_array)


def _without_value_level(tree: PyTree) -> PyTree:
    """A tree without the level that NNX puts between a variable and its array."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(tree, nnx.State):
        return nnx.to_pure_dict(tree)
    return strip_value_level(tree)


def _holds_parameters_only(source: Classified, template: Template) -> bool:
    """Whether a model is parameters in its own container.

    That is what `equinox.filter` and `equinox.partition` leave of a module, and what a plain
    callable takes as its parameters.
    """
    model = template.given
    if source.kind != "equinox" or model.kind not in ("function", "equinox"):
        return False
    # What was filtered out is None, and no leaf: the activation functions, for one.
    has_fewer_leaves = len(jax.tree.leaves(source.value)) < len(jax.tree.leaves(model.value))
    return model.kind == "function" or has_fewer_leaves


def _require_model(model: Model) -> None:
    """Refuse parameters without a model, which mean nothing by themselves."""
    if model is None:
        raise errors.InvalidInputError(
            expected="model= beside parameters that do not know their function",
            got="model=None",
            do="Pass a Functional, a linen, NNX or Equinox model, or a callable f(params, x).",
        )


def _require_finite(leaves: Leaves, label: str | None) -> None:
    """Refuse NaN and infinity, and name the arrays that hold them."""
    wrong = []
    for path, leaf in leaves.items():
        if _is_floating(leaf) and not np.isfinite(_known_to_numpy(leaf)).all():
            wrong.append(path)
    if wrong:
        of = "" if label is None else f" of {label}"
        raise errors.InvalidInputError(
            expected="finite parameters and fixed arrays",
            got=f"NaN or infinity in {', '.join(wrong)}{of}",
            do="Take a checkpoint from before training diverged.",
        )


def _floating_dtypes(params: PyTree) -> tuple[str, ...]:
    """Names of the floating dtypes in a tree, sorted."""
    floating = [leaf for leaf in jax.tree.leaves(params) if _is_floating(leaf)]
    return tuple(sorted({str(np.dtype(leaf.dtype)) for leaf in floating}))


def _is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)


def _known_to_numpy(leaf: Any) -> np.ndarray:
    """An array in a dtype whose numbers NumPy can judge: bfloat16 and float8 become float32."""
    array = np.asarray(leaf)
    if np.dtype(leaf.dtype).itemsize < 4:
        return array.astype(np.float32)
    return array


def _are_one_checkpoint(a: Side, b: Side) -> bool:
    """Whether two sides are the same step of the same path."""
    if a.path is None or b.path is None:
        return False
    return _absolute(a.path) == _absolute(b.path) and a.step == b.step


def _absolute(path: str) -> str:
    """A path by which two names of one directory are known as the same, links included."""
    return os.path.realpath(os.path.expanduser(path))
