"""The checkpoints to be compared, brought to one form: a Functional with its name and fixed state.

A side is a path, values in memory, or a model that knows its own function. Values are put into the
model that is common to all sides (see `restore`); a model keeps its own.

What is compared is one array `[N ...]`. A model may return a dictionary, a tuple or a dataclass:
where there is one array in it, or one that is called `logits`, that is taken; otherwise the caller
has to choose. Along the last axis lie the classes; axes between it and the examples are positions,
such as those of tokens.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag import display, errors
from ntkdiag.arrays import as_array
from ntkdiag.call_f import refusal
from ntkdiag.checkpoints.contents import Contents, read_contents, strip_value_level
from ntkdiag.checkpoints.location import Location
from ntkdiag.checkpoints.names import OPTIMIZER_STATES, PARAMETERS, SELDOM_COLLECTIONS
from ntkdiag.checkpoints.tree_parts import find_parts, subtree, top_level
from ntkdiag.comparison.restore import Leaves, Template, place, random_streams
from ntkdiag.comparison.sources import Classified, Source, classified, split_step
from ntkdiag.measuring.settings import Settings
from ntkdiag.models.functional import Apply, Functional
from ntkdiag.models.paths import describe, leaves_by_path
from ntkdiag.optimizer.saved_state import Optimizer, OptimizerState, restored_state

_LOGITS = "logits"
_NOWHERE = pathlib.Path("values in memory")
IN_MEMORY = Location(_NOWHERE, _NOWHERE, item=None, step=None)  # of what lies in no file


@dataclasses.dataclass(frozen=True)
class Side:
    """One checkpoint inside its model."""

    label: str  # its name in tables
    functional: Functional  # model and parameters
    path: str | None  # the checkpoint path as given; None for values in memory
    step: int | None  # step number, where the checkpoint has one
    shares_model: bool  # whether the values were put into the model common to all sides
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
    def fixed_state(self) -> str:
        """Where the arrays that are not parameters come from, in words."""
        fixed = self.functional.fixed
        if self.shares_model:  # random streams stay those of the model
            fixed = [path for path in fixed if path not in random_streams(fixed)]
        if not fixed:
            return "none"
        if not self.shares_model:
            return "its own"
        saved = [path for path in fixed if path not in self.lacking]
        of_model = f"those of the model as given ({display.some_of(self.lacking)})"
        if not saved:
            return f"{of_model}; none were saved"
        as_saved = f"as saved ({display.some_of(saved)})"
        return f"{as_saved}; {of_model}" if self.lacking else as_saved


def read_side(
    source: Classified, template: Template, *, name: str, label: str | None = None
) -> Side:
    """Bring one argument to a Functional; its parameters are known to be finite.

    `name` is the label where neither `label` nor a path gives one.
    """
    # A model is taken as it is, and values are put into the model that all sides share; so are
    # those of a model, where a Functional was given whose options hold for it.
    brings_function = source.is_model and not _holds_parameters_only(source, template)
    lacking, left_out = (), ()
    is_own = (brings_function and template.options is None) or source.kind == "functional"
    if is_own:
        functional = source.functional()
        contents = Contents(functional.params, {}, IN_MEMORY, "a model")
    else:
        contents = _read(source, template)
        _require_finite(leaves_by_path(contents.params), label)
        if template.source.value is None:
            raise errors.InvalidInputError(
                expected="model=, because parameters alone have no function",
                got="model=None",
                do="Pass a Functional, a linen, NNX or Equinox model, or a callable f(params, x).",
            )
        functional, lacking, left_out = place(template, contents)
        # A history that is not read may contain NaN.
        for collection, tree in contents.collections.items():
            if collection not in left_out:
                _require_finite(leaves_by_path({collection: tree}), label)
    _require_finite(leaves_by_path(functional.params), label)
    of_source, location = source.optimizer_state, contents.location
    is_path = location is not IN_MEMORY
    return Side(
        label=display.printable(label or (location.label if is_path else name)),
        functional=functional,
        path=display.printable(split_step(source.value)[0]) if is_path else None,
        step=location.step,
        shares_model=not is_own,
        lacking=lacking,
        left_out=tuple(name for name in left_out if name not in SELDOM_COLLECTIONS),
        optimizer_state=contents.optimizer_state if of_source is None else of_source,
        top_level=contents.top_level,
    )


def read_sides(sources: Iterable[tuple[str | int, Source]], template: Template) -> Iterator[Side]:
    """Each source as it comes, by its step, or by a letter where its path does not name it."""
    for name, source in sources:
        label = f"step {name}" if isinstance(name, int) else None
        try:
            side = read_side(classified(source), template, name=str(name), label=label)
        except errors.StructureError as error:
            of = label or f"side {name}"
            raise errors.StructureError(f"{error} It is the checkpoint of {of}.") from error
        if isinstance(name, int):
            side = dataclasses.replace(side, step=name)
        if template.source.kind == "linen" and side.shares_model and template.options is None:
            # A module is asked only once which collections it reads.
            own_model = classified(side.functional)
            template = dataclasses.replace(template, source=own_model, options=side.functional)
        yield side


def with_labels_apart(a: Side, b: Side) -> tuple[Side, Side]:
    """Two sides with labels that tell them apart."""
    if a.label == b.label:
        a = dataclasses.replace(a, label=f"A: {a.label}")
        b = dataclasses.replace(b, label=f"B: {b.label}")
    return a, b


def with_one_output(side: Side, settings: Settings) -> tuple[Side, tuple[int, ...]]:
    """The side with a function that returns one array `[N ...]`, and its shape on the probe.

    Refused unless the array fits probe, labels and loss.
    """
    returned = leaves_by_path(_shapes_of_outputs(side, settings))
    path = next(iter(returned)) if len(returned) == 1 else _LOGITS
    if path not in returned:
        arrays = ", ".join(f"{name} {describe(leaf)}" for name, leaf in returned.items())
        first = next(iter(returned), _LOGITS)
        raise _fit_error(
            f"{len(returned)} of them: {arrays or 'nothing'}",
            f'Say which: model=functionalize(model, variables, output="{first}").',
        )
    shape = tuple(returned[path].shape)
    if shape[:1] != (settings.n_examples,):
        raise _fit_error(
            f"outputs of shape {shape}",
            "Check that x has the shape the model takes, and wrap the model to return the outputs "
            "to compare.",
        )
    if settings.loss is not None:
        settings.loss.require_fit(shape)
    if path:  # the model returns a container
        set_aside = tuple(name for name in returned if name != path)
        functional = _with_output(side.functional, path)
        side = dataclasses.replace(side, functional=functional, output=path, set_aside=set_aside)
    return side, shape


def state_of(side: Side, optimizer: Optimizer) -> OptimizerState | None:
    """The optimizer's state of one side; None where it has none."""
    params = side.functional.params
    return restored_state(optimizer, params, side.optimizer_state, side.label)


def require_some_state(sides: Sequence[Side], optimizer: Optimizer) -> None:
    """Refuse sides none of which has an optimizer's state, where one was asked for."""
    if any(state_of(side, optimizer) is not None for side in sides):
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


def _read(source: Classified, template: Template) -> Contents:
    """Parameters and collections of a checkpoint, of a tree in memory, or of a model."""
    kind, value = source.kind, source.value
    if kind == "path":
        path, step = split_step(value)
        return read_contents(
            path,
            step,
            skeleton=template.skeleton,
            model=template,
            with_optimizer=template.with_optimizer,
        )
    if kind == "stateful":
        module, state = value
        return _in_memory(_arrays_of_module(module), {"state": state})
    if kind == "nnx":
        return _in_memory(_plain(sys.modules["flax.nnx"].state(value)))
    # f(params, x) takes any tree, such as a variables dictionary or a module.
    takes_any_tree = template.source.kind == "function"
    if kind == "equinox" and not takes_any_tree:
        return _in_memory(_arrays_of_module(value))
    if kind == "adapter":
        functional = source.functional()
        return _in_memory({**functional.fixed, **leaves_by_path(functional.params)})
    if kind == "mapping" and takes_any_tree and not _has_optimizer(value):
        return _in_memory(value)
    if kind == "mapping":
        return _parts_of(_plain(value), template)
    if hasattr(value, "params"):
        return _parts_of(_plain(_fields_of(value)), template)
    return _in_memory(strip_value_level(value))


def _in_memory(params: PyTree, collections: dict[str, PyTree] | None = None) -> Contents:
    return Contents(params, collections or {}, IN_MEMORY)


def _parts_of(tree: Mapping[str, PyTree], template: Template) -> Contents:
    """A dictionary taken apart as one that was saved: by the paths of the model, or by names."""
    tree = tree if template.fits(tree) else _nested(tree)
    parts = find_parts(IN_MEMORY, tree, None, template)
    collections = {}
    for name, keys in parts.collections.items():
        collections[name] = strip_value_level(subtree(tree, keys))
    state = parts.optimizer_state
    return Contents(
        strip_value_level(subtree(tree, parts.params)),
        collections,
        IN_MEMORY,
        top_level(tree),
        None if state is None else subtree(tree, state),
    )


def _has_optimizer(tree: Mapping[str, PyTree]) -> bool:
    """Whether a dictionary holds the state of an optimizer beside the parameters."""
    has_params = any(name in tree for name in PARAMETERS)
    return has_params and any(name in tree for name in OPTIMIZER_STATES)


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
    return state._asdict() if hasattr(state, "_asdict") else {"params": state.params}


def _arrays_of_module(module: Any) -> PyTree:
    equinox = sys.modules["equinox"]
    return equinox.filter(module, equinox.is_array)


def _plain(tree: PyTree) -> PyTree:
    """A tree with dictionaries for other mappings, such as those of Flax."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(tree, nnx.State):
        return nnx.to_pure_dict(tree)
    if isinstance(tree, Mapping):
        return {name: _plain(child) for name, child in tree.items()}
    return tree


def _holds_parameters_only(source: Classified, template: Template) -> bool:
    """Whether a model is parameters in its own container.

    That is what `equinox.filter` and `equinox.partition` leave of a module, and what a plain
    callable takes as its parameters.
    """
    model = template.source
    if source.kind != "equinox" or model.kind not in ("function", "equinox"):
        return False
    # What was filtered out is None, and no leaf: the activation functions, for one.
    has_fewer_leaves = len(jax.tree.leaves(source.value)) < len(jax.tree.leaves(model.value))
    return model.kind == "function" or has_fewer_leaves


def _require_finite(leaves: Leaves, label: str | None) -> None:
    """Refuse NaN and infinity, and name the arrays that hold them."""
    wrong = []
    for path, leaf in leaves.items():
        if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        array = np.asarray(leaf)
        if leaf.dtype.itemsize < 4:  # NumPy cannot judge bfloat16 and float8
            array = array.astype(np.float32)
        if not np.isfinite(array).all():
            wrong.append(path)
    if wrong:
        of = "" if label is None else f" of {label}"
        raise errors.InvalidInputError(
            expected="finite parameters and fixed arrays",
            got=f"NaN or infinity in {', '.join(wrong)}{of}",
            do="Take a checkpoint from before training diverged.",
        )


def _with_output(functional: Functional, path: str) -> Functional:
    """A model that returns the array at a path alone, in its other modes and states, too."""

    def of(make: Callable[..., Functional] | None) -> Callable[..., Functional] | None:
        """The same way to another Functional, with this output."""
        if make is None:
            return None
        return lambda *arguments: _with_output(make(*arguments), path)

    apply = Apply(functional.apply, functional.library, functional.mode, path)
    return dataclasses.replace(
        functional, apply=apply, rebuild=of(functional.rebuild), in_mode=of(functional.in_mode)
    )


def _shapes_of_outputs(side: Side, settings: Settings) -> PyTree:
    f, params = side.functional
    try:
        return jax.eval_shape(f, params, settings.x)
    except errors.NtkdiagError:
        raise
    except Exception as error:
        do = ""
        # Linen misses a collection, such as batch statistics. Known by name: Flax may not be
        # loaded.
        if type(error).__name__ == "ScopeCollectionNotFound":
            do = "Pass model=ntkdiag.functionalize(model, variables) with what was not saved."
        raise refusal(error, of=f"{side.label}: ", do=do) from error


def _fit_error(got: str, do: str) -> errors.InvalidInputError:
    return errors.InvalidInputError(
        expected="a model that gives one array [N ...] for x [N ...]; for cross-entropy with two "
        "or more classes on the last axis",
        got=got,
        do=do,
    )
