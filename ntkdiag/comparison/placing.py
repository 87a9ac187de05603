"""Saved values put into a model, leaf by leaf, with every difference named.

Every library holds its arrays in another container, so each has a function of its own. All of them
take the same four steps:

1. read the arrays of the model by path: parameters, which have to be saved, and fixed arrays, such
   as batch statistics, which may be;
2. refuse saved arrays of other paths, shapes or dtypes, with all differences at once;
3. put the saved arrays in the place of the model's own;
4. say in a sentence where the fixed arrays come from.
"""

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models import functionalize
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import describe, differences, leaves_by_path

# A linen module, an NNX or Equinox model, a Functional, or a callable f(params, x): the libraries
# are not imported to name their types.
Model: TypeAlias = Any
Leaves: TypeAlias = dict[str, Any]  # path -> array

MOST_PATHS = 4  # more are counted


@dataclasses.dataclass(frozen=True)
class Template:
    """What gives parameters their meaning: the model that they are put into.

    Attributes:
        model: The model; None where neither side of the comparison needs one.
        variables: Variables of a linen module, which state its structure and fill in collections
            that were not saved; None takes everything from what was saved.
        options: The Functional handed in as the model, whose options hold for models of a library,
            too; None where there is none.
    """

    model: Model
    variables: PyTree = None
    options: Functional | None = None


def place(
    template: Template, params: PyTree, collections: Mapping[str, PyTree]
) -> tuple[Functional, str]:
    """Put parameters, and fixed collections where they were saved, into a model.

    Args:
        template: The model.
        params: Saved tree: the parameters, for NNX and Equinox with any fixed arrays among them.
        collections: Saved collections beside the parameters, by name.

    Returns:
        The Functional with these values, and one sentence on where its fixed arrays come from.

    Raises:
        StructureError: Paths, shapes or dtypes differ from the model's; all differences are listed.
    """
    model = template.model
    if isinstance(model, Functional):
        return _into_functional(model, params, collections)
    if is_module_of("flax.linen", model):
        return _into_linen(model, template.variables, params, collections)
    if is_module_of("flax.nnx", model):
        return _into_nnx(model, params)
    if is_module_of("equinox", model):
        return _into_equinox(model, params)
    return functionalize(model, params, check=False), "none"


def is_module_of(library: str, candidate: object) -> bool:
    """Whether a value is a module of a library, which is loaded if it is."""
    loaded = sys.modules.get(library)
    return loaded is not None and isinstance(candidate, loaded.Module)


def is_plain_callable(model: Model) -> bool:
    """Whether a model is f(params, x) alone, which tells nothing about its parameters."""
    if not callable(model) or isinstance(model, Functional):
        return False
    libraries = ("flax.linen", "flax.nnx", "equinox")
    return not any(is_module_of(library, model) for library in libraries)


def unbound(model: Model) -> Model:
    """The linen module of a bound method `module.apply`; everything else as it is."""
    owner = getattr(model, "__self__", None)
    name = getattr(model, "__name__", "")
    if name == "apply" and is_module_of("flax.linen", owner):
        return owner
    return model


def structure_error(lines: list[str]) -> errors.StructureError:
    """The error that lists every difference by path."""
    count = "1 difference" if len(lines) == 1 else f"{len(lines)} differences"
    return errors.StructureError(
        expected="parameters with the same paths, shapes and dtypes on both sides and in the model",
        got=f"{count}: {'; '.join(lines)}",
        do="Compare checkpoints of one model; nothing is restored in part.",
    )


def same_leaves(a: Leaves, b: Leaves) -> bool:
    """Whether two dictionaries hold the same arrays under the same paths."""
    return a.keys() == b.keys() and all(_are_equal(a[path], b[path]) for path in a)


def _into_linen(
    module: Model, variables: PyTree, params: PyTree, collections: Mapping[str, PyTree]
) -> tuple[Functional, str]:
    """A linen module: parameters and collections are trees of their own."""
    from flax import core

    stated = {} if variables is None else core.unfreeze(variables)
    stated_collections = {name: tree for name, tree in stated.items() if name != "params"}
    # Without variables the collections that were saved are those of the model.
    saved_collections = {}
    for name, tree in collections.items():
        if not stated or name in stated_collections:
            saved_collections[name] = tree

    lines = []
    if "params" in stated:
        lines += differences(stated["params"], params)
    for name, tree in saved_collections.items():
        if name in stated_collections:
            lines += differences({name: stated_collections[name]}, {name: tree})
    if lines:
        raise structure_error(lines)

    placed = {**stated_collections, **saved_collections, "params": params}
    functional = functionalize(module, placed, check=False)
    return functional, _origin(leaves_by_path(saved_collections), functional.fixed)


def _into_nnx(model: Model, params: PyTree) -> tuple[Functional, str]:
    """An NNX model: all arrays are one State, in which random keys stay as they are."""
    from flax import nnx

    in_model = leaves_by_path(nnx.to_pure_dict(nnx.state(model)))
    random_keys = leaves_by_path(nnx.to_pure_dict(nnx.state(model, nnx.RngState)))
    trainable = leaves_by_path(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    saved = {path: leaf for path, leaf in leaves_by_path(params).items() if path not in random_keys}
    _require_fit(in_model, saved, trainable)

    # A copy: the caller's model keeps its values.
    copy = nnx.clone(model)
    state = nnx.state(copy)
    nnx.replace_by_pure_dict(state, _with_leaves(nnx.to_pure_dict(state), saved))
    nnx.update(copy, state)

    functional = functionalize(copy, check=False)
    fixed = {path: leaf for path, leaf in functional.fixed.items() if path not in random_keys}
    return functional, _origin(saved, fixed)


def _into_equinox(module: Model, params: PyTree) -> tuple[Functional, str]:
    """An Equinox module: every array is a leaf of the module itself."""
    import equinox as eqx

    in_module = leaves_by_path(eqx.filter(module, eqx.is_array))
    trainable = leaves_by_path(eqx.filter(module, eqx.is_inexact_array))
    saved = leaves_by_path(params)
    _require_fit(in_module, saved, trainable)
    functional = functionalize(_with_leaves(module, saved), check=False)
    return functional, _origin(saved, functional.fixed)


def _into_functional(
    model: Functional, params: PyTree, collections: Mapping[str, PyTree]
) -> tuple[Functional, str]:
    """A Functional: the parameters are replaced; what it holds fixed stays, and is compared."""
    trainable = leaves_by_path(model.params)
    saved = leaves_by_path(params)
    # The paths of linen begin with the name of the collection, those of saved parameters do not.
    fixed = {path.removeprefix("params/"): leaf for path, leaf in model.fixed.items()}
    _require_fit({**fixed, **trainable}, saved, trainable)
    saved_trainable = {path: leaf for path, leaf in saved.items() if path in trainable}
    functional = model.with_params(_with_leaves(model.params, saved_trainable), check=False)
    if not model.fixed:
        return functional, "none"

    origin = f"those of the Functional given as model= ({_some(model.fixed)})"
    saved_beside = {**saved, **leaves_by_path(collections)}
    differing = []
    for path, leaf in fixed.items():
        if path in saved_beside and not _are_equal(leaf, saved_beside[path]):
            differing.append(path)
    if differing:
        origin += f"; the saved {_some(differing)} differ and are not used"
    return functional, origin


def _require_fit(in_model: Leaves, saved: Leaves, trainable: Leaves) -> None:
    """Refuse saved leaves unless they are all parameters, and any fixed arrays, of the model."""
    expected = {}
    for path, leaf in in_model.items():
        if path in trainable or path in saved:
            expected[path] = leaf
    lines = differences(expected, saved)
    if lines:
        raise structure_error(lines)


def _with_leaves(tree: PyTree, values: Leaves) -> PyTree:
    """A tree with the values at their paths, as arrays of JAX, and its own leaves elsewhere."""
    # Among the leaves of an Equinox module are functions and settings: they stay what they are.
    leaves = []
    for path, leaf in leaves_by_path(tree).items():
        value = values.get(path, leaf)
        is_array = hasattr(value, "__array_interface__")
        leaves.append(jnp.asarray(value) if is_array else value)
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def _origin(saved: Leaves, fixed: Leaves) -> str:
    """Where the fixed arrays of a model come from, in words."""
    if not fixed:
        return "none"
    fixed_saved = [path for path in saved if path in fixed]
    if not fixed_saved:
        return f"those of the model as given ({_some(fixed)}); none were saved"
    origin = f"as saved ({_some(fixed_saved)})"
    fixed_unsaved = [path for path in fixed if path not in saved]
    if fixed_unsaved:
        origin += f"; {_some(fixed_unsaved)} those of the model as given"
    return origin


def _some(paths: Iterable[str]) -> str:
    """Paths joined by commas, the first four of them, and how many more there are."""
    listed = list(paths)
    text = ", ".join(listed[:MOST_PATHS])
    if len(listed) > MOST_PATHS:
        text += f" and {len(listed) - MOST_PATHS} more"
    return text


def _are_equal(left: Any, right: Any) -> bool:
    """Whether two arrays have one shape, one dtype and the same numbers."""
    return describe(left) == describe(right) and bool(jnp.all(left == right))
