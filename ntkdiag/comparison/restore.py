"""Saved values put into a model, leaf by leaf, with every difference named.

Every library holds its arrays in another container; a Functional names all of them by path:

1. read the arrays of the model by path: parameters, which have to be saved, and fixed arrays, such
   as batch statistics, which may be;
2. leave out dictionaries that the model does not read, such as a history of the loss, and refuse
   saved arrays of other paths, shapes or dtypes, with all differences at once;
3. put the saved arrays instead of the model's own, which stay only where none were saved;
4. say in a sentence where the fixed arrays come from.

A linen module alone does not know its arrays: its `init` says, on the probe, which parameters it
has.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import display, errors
from ntkdiag.checkpoints.contents import strip_value_level
from ntkdiag.checkpoints.files import ParameterNames
from ntkdiag.checkpoints.names import OPTIMIZER_STATES, SELDOM_COLLECTIONS, Keys
from ntkdiag.comparison.sources import Classified, Model
from ntkdiag.jaxtools.arguments import leaf_name
from ntkdiag.jaxtools.jaxprs import needs_inputs
from ntkdiag.models import functionalize
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import (
    describe,
    differences,
    leaves_by_path,
    shown,
    with_leaves,
)

Leaves: TypeAlias = dict[str, Any]  # path -> array

MOST_PATHS = 4  # more are counted
# What to do with two models that have no parameters in common.
TWO_MODELS = (
    "Compare the kernels of two models f and g by ntkdiag.analysis.drift(ntkdiag.ntk(f, p, x), "
    "ntkdiag.ntk(g, q, x))."
)


@dataclasses.dataclass(frozen=True)
class Template:
    """What gives parameters their meaning: the model that they are put into."""

    # The model, with what it is; None where neither side of the comparison needs one.
    given: Classified
    # Variables of a linen module, which state its structure and fill in collections that were not
    # saved; None takes everything from what was saved.
    variables: PyTree = None
    # The Functional handed in as the model, whose options hold for models of a library, too; None
    # where there is none.
    options: Functional | None = None
    x: PyTree = None  # the probe, on which a linen module shows which collections it reads
    # An Equinox module, or one with its state and that of an optimizer, of the structure that a
    # file of Equinox was written from; None where there is none.
    skeleton: PyTree = None
    parameter_names: ParameterNames | None = None  # what paths the names of a safetensors file have
    with_optimizer: bool = False  # whether states of optimizers are read from checkpoints, too

    @staticmethod
    def of(
        model: Classified,
        *,
        common: Classified | None = None,
        variables: PyTree = None,
        x: PyTree = None,
        parameter_names: ParameterNames | None = None,
        with_optimizer: bool = False,
    ) -> "Template":
        """A template of what the caller gave; `common` is the model of a side, if one brings it.

        A Functional that is passed brings its options, such as the mode and what is trainable;
        one that is a side does not.
        """
        given = common if model.value is None and common is not None else model
        return Template(
            given=given,
            variables=variables,
            options=model.value if model.kind == "functional" else None,
            x=x,
            skeleton=_skeleton_of(given),
            parameter_names=parameter_names,
            with_optimizer=with_optimizer,
        )

    @property
    def model(self) -> Model:
        """The model as it came, without the state of its optimizer."""
        return self.given.value

    @functools.cached_property
    def functional(self) -> Functional | None:
        """The model as a Functional, for models that hold their own arrays; None for others."""
        return self.given.functional() if self.given.is_model else None

    @functools.cached_property
    def declared(self) -> list[dict[str, PyTree]]:
        """Shapes of the variables of a linen module, by collection, of each way to call `init`."""
        from ntkdiag.models.linen import declared_variables

        return declared_variables(self.model, self.x)

    @functools.cached_property
    def stated(self) -> dict[str, PyTree]:
        """The variables of a linen module that were passed, by collection; {} without."""
        from flax import core

        return {} if self.variables is None else core.unfreeze(self.variables)

    def fits(self, tree: PyTree) -> bool:
        """Whether a saved tree is the parameters of the model, and fixed arrays of it, by paths."""
        saved = _paths(strip_value_level(tree))
        if self.given.kind == "linen":
            return saved in self._paths_of_params
        if self.functional is None:
            return False
        trainable = leaves_by_path(self.functional.params).keys()
        saved = {self.functional.aliases.get(path, path) for path in saved}
        return trainable <= saved <= trainable | _short_paths(self.functional.fixed).keys()

    def may_read(self, name: str, tree: PyTree) -> bool:
        """Whether a saved collection may be fixed arrays of the model.

        A linen module may read more than its `init` makes: what is neither the state of an
        optimizer nor a copy of the parameters. Whether it does is told where it is placed.
        """
        tree = strip_value_level(tree)
        if self.given.kind == "linen":
            if self.stated:
                return name in self.stated
            if any(name in variables for variables in self.declared):
                return True
            return name not in OPTIMIZER_STATES and _paths(tree) not in self._paths_of_params
        if self.functional is None:
            return False
        fixed = _short_paths(self.functional.fixed)
        leaves = _leaves_of_collection(name, tree, fixed).keys()
        is_of_params = leaves & leaves_by_path(self.functional.params).keys()
        return bool(leaves & fixed.keys()) and not is_of_params

    @functools.cached_property
    def _paths_of_params(self) -> list[set[str]]:
        """The paths of the parameters of a linen module, of each way to call its `init`."""
        ways = [self.stated] if self.stated else self.declared
        return [_paths(variables.get("params", {})) for variables in ways]


@dataclasses.dataclass(frozen=True)
class Placed:
    """Values inside the model, and where its fixed arrays come from."""

    functional: Functional  # model and parameters
    fixed_state: str  # where the fixed arrays come from, in words
    # Paths of the fixed arrays that were not among the values: the model's own stand in for them.
    lacking: tuple[str, ...] = ()
    # Dictionaries beside the parameters that the model does not read, by name.
    left_out: tuple[str, ...] = ()


def place(
    template: Template,
    params: PyTree,
    collections: Mapping[str, PyTree],
    at: Keys | None = None,
) -> Placed:
    """Put parameters, and fixed arrays where they were saved, into a model.

    `at` are the keys that lead to the parameters in a checkpoint; None for values in memory.
    """
    if template.given.kind == "linen":
        return _into_linen(template, params, collections, at)
    if template.functional is not None:
        return _into_functional(template.functional, params, collections, at)
    return Placed(functionalize(template.model, params, check=False), "none")


def _skeleton_of(given: Classified) -> PyTree:
    """The Equinox module in a model, with what it comes with; None in other models."""
    if given.kind in ("stateful", "equinox"):
        return given.whole
    if given.kind == "functional" and given.value.library == "equinox":
        return given.value.restore(given.value.params)
    return None


def _paths(tree: PyTree) -> set[str]:
    """The paths of the leaves of a tree."""
    return {leaf_name(keys) for keys, _ in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _short_paths(fixed: Leaves) -> Leaves:
    """Fixed arrays by the paths that saved ones have.

    The paths of linen begin with the name of the collection, those of saved parameters do not.
    """
    return {path.removeprefix("params/"): leaf for path, leaf in fixed.items()}


def structure_error(lines: list[str], do: str = "") -> errors.StructureError:
    """The error that lists every difference by path; `do` is what to do where that is known."""
    return errors.StructureError(
        expected="parameters with the same paths, shapes and dtypes on both sides and in the model",
        got=f"{counted(lines)}: {'; '.join(lines)}",
        do=do or "Compare checkpoints of one model; nothing is restored in part.",
    )


def counted(lines: list[str]) -> str:
    """How many differences there are, in words."""
    return "1 difference" if len(lines) == 1 else f"{len(lines)} differences"


def same_leaves(a: Leaves, b: Leaves) -> bool:
    """Whether two dictionaries hold the same arrays under the same paths."""
    return a.keys() == b.keys() and all(are_equal(a[path], b[path]) for path in a)


def _into_linen(
    template: Template, params: PyTree, collections: Mapping[str, PyTree], at: Keys | None
) -> Placed:
    """A linen module, whose variables are stated or else all taken from what was saved."""
    stated = template.stated
    stated_collections = {name: tree for name, tree in stated.items() if name != "params"}
    if not stated:
        _require_declared(template, params, at)
    placed = {**stated_collections, **collections, "params": params}
    left_out = []
    for name in collections:
        is_read = name in stated_collections if stated else _reads(template, placed, name)
        if not is_read:
            left_out.append(name)
            del placed[name]
    collections = {name: tree for name, tree in collections.items() if name not in left_out}

    lines = []
    if "params" in stated:
        lines += differences(stated["params"], params)
    for name, tree in collections.items():
        if stated:
            lines += differences({name: stated_collections[name]}, {name: tree})
    if lines:
        raise structure_error(lines)
    functional = functionalize(template.model, placed, check=False)
    return _placed(functional, leaves_by_path(collections), functional.fixed, left_out)


def _require_declared(template: Template, params: PyTree, at: Keys | None) -> None:
    """Refuse parameters that are not those of a linen module, in paths or shapes."""
    from flax.linen import meta

    # Boxes hold how arrays are laid out on devices. Which dtype they are saved in is left open.
    saved = leaves_by_path(meta.unbox(params))
    closest: Leaves = {}
    fewest: list[str] | None = None
    for declared in template.declared:
        expected = {}
        for path, leaf in leaves_by_path(declared.get("params", {})).items():
            dtype = getattr(saved.get(path), "dtype", leaf.dtype)
            expected[path] = jax.ShapeDtypeStruct(leaf.shape, dtype)
        lines = differences(expected, saved)
        if fewest is None or len(lines) < len(fewest):
            fewest, closest = lines, expected
    if fewest:
        name = type(template.model).__name__
        raise errors.StructureError(
            expected=f"parameters of the model: those that {name}.init makes on the examples",
            got=f"{counted(fewest)}: {shown(fewest)}",
            do=_where_they_are(closest, saved, at)
            or "They are of another model: pass the one that was saved. Where init makes only some "
            "of the parameters, as others belong to other methods, pass all of them as variables=.",
        )


def _reads(template: Template, variables: dict[str, PyTree], name: str) -> bool:
    """Whether the outputs of a linen module on the probe need one of its collections."""
    without = {key: tree for key, tree in variables.items() if key != name}

    def outputs(collection: PyTree) -> PyTree:
        functional = functionalize(template.model, {**without, name: collection}, check=False)
        return functional(functional.params, template.x)

    # Settings and names are no arrays, and nothing that a layer computes with.
    if not all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(variables[name])):
        return False
    try:
        return needs_inputs(outputs, variables[name])
    except Exception:
        return True  # the model does not run: that is said where it is evaluated


def _into_functional(
    model: Functional, params: PyTree, collections: Mapping[str, PyTree], at: Keys | None
) -> Placed:
    """A Functional: the parameters are replaced, and of what it holds fixed all that was saved."""
    trainable = leaves_by_path(model.params)
    fixed = _short_paths(model.fixed)
    # Keys and counts of random streams are no part of what was learned: they stay as they are.
    streams = random_streams(fixed)
    saved = {}
    for path, leaf in leaves_by_path(params).items():
        saved[model.aliases.get(path, path)] = leaf
    left_out = []
    collection_of: dict[str, str] = {}
    of_params = set(saved)
    # Where two hold the same arrays, as batch statistics and their average do, names tell.
    for name in sorted(collections, key=SELDOM_COLLECTIONS.__contains__):
        leaves = _leaves_of_collection(name, collections[name], fixed)
        is_copy = name in SELDOM_COLLECTIONS and leaves.keys() & collection_of.keys()
        if is_copy or leaves.keys() & of_params or not leaves.keys() & fixed.keys():
            left_out.append(name)
            continue
        for path in leaves.keys() & collection_of.keys():
            raise _two_collections_error(collection_of[path], name, path)
        collection_of |= dict.fromkeys(leaves, name)
        saved |= leaves
    saved = {path: leaf for path, leaf in saved.items() if path not in streams}
    _require_fit({**fixed, **trainable}, saved, trainable, at)

    # 1. The parameters.
    saved_trainable = {path: leaf for path, leaf in saved.items() if path in trainable}
    functional = model.with_params(with_leaves(model.params, saved_trainable), check=False)
    # 2. The fixed arrays, where they differ: `apply` is compiled anew for others.
    saved_fixed = {}
    for path in model.fixed:
        short_path = path.removeprefix("params/")
        if short_path in saved:
            saved_fixed[path] = saved[short_path]
    own_fixed = {path: leaf for path, leaf in model.fixed.items() if path in saved_fixed}
    if not same_leaves(own_fixed, saved_fixed):
        functional = functional.with_fixed(saved_fixed)
    held = {path: leaf for path, leaf in model.fixed.items() if path not in streams}
    return _placed(functional, saved_fixed, held, left_out)


def _leaves_of_collection(name: str, tree: PyTree, fixed: Leaves) -> Leaves:
    """The leaves of a saved collection, by the paths that the model has for them."""
    # The State of Equinox is a row of arrays without names, in the order of the model's own.
    state_paths = [path for path in fixed if path.startswith("state/")]
    state_leaves = jax.tree.leaves(tree)
    by_name = leaves_by_path({name: tree})
    # Layers without names in the State have its numbers as their paths.
    is_row = not isinstance(tree, Mapping) or not by_name.keys() & fixed.keys()
    if name == "state" and is_row and len(state_leaves) == len(state_paths):
        return dict(zip(state_paths, state_leaves, strict=True))
    # Linen: the collection is a level of its own.
    if by_name.keys() & fixed.keys():
        return by_name
    # NNX: the collections are parts of one State, in which the names of variables are the paths.
    return leaves_by_path(tree)


def random_streams(fixed: Leaves) -> set[str]:
    """The paths of random keys, and of the counts that NNX keeps beside them."""
    streams = set()
    for path, leaf in fixed.items():
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            streams |= {path, f"{path.removesuffix('key')}count"}
    return streams & fixed.keys()


def _require_fit(in_model: Leaves, saved: Leaves, trainable: Leaves, at: Keys | None) -> None:
    """Refuse saved leaves unless they are all parameters, and any fixed arrays, of the model."""
    expected = {}
    for path, leaf in in_model.items():
        if path in trainable or path in saved:
            expected[path] = leaf
    lines = differences(expected, saved)
    if lines:
        raise structure_error(lines, _where_they_are(expected, saved, at))


def _where_they_are(expected: Iterable[str], saved: Leaves, at: Keys | None) -> str:
    """What to do where all that is expected stands under one key; empty where it does not."""
    paths = list(expected)
    for path in saved:
        key = path.removesuffix(f"/{paths[0]}") if paths else path
        if key != path and all(f"{key}/{name}" in saved for name in paths):
            if at is None:
                return f"They stand under {key!r}: pass the tree that stands there."
            full = "/".join((*at, key))
            return f"They stand under {full!r}: pass load_params(path, at={full!r})."
    return ""


def _two_collections_error(first: str, second: str, path: str) -> errors.StructureError:
    """The error for two saved collections that would both stand in one place of the model."""
    return errors.StructureError(
        expected="one collection for each of the fixed arrays of the model",
        got=f"{first} and {second}, which both hold {path}",
        do="Pass parameters and collections that are meant as a dictionary such as "
        '{"params": ..., "batch_stats": ...}.',
    )


def _placed(
    functional: Functional, saved: Leaves, fixed: Leaves, left_out: Iterable[str]
) -> Placed:
    """What was placed, with words on where the fixed arrays come from."""
    lacking = tuple(path for path in fixed if path not in saved)
    fixed_saved = [path for path in fixed if path in saved]
    if not fixed:
        origin = "none"
    elif not fixed_saved:
        origin = f"those of the model as given ({display.some_of(fixed)}); none were saved"
    elif lacking:
        origin = f"as saved ({display.some_of(fixed_saved)}); "
        origin += f"{display.some_of(lacking)} those of the model as given"
    else:
        origin = f"as saved ({display.some_of(fixed_saved)})"
    return Placed(functional, origin, lacking, tuple(left_out))


def are_equal(left: Any, right: Any) -> bool:
    """Whether two arrays have one shape, one dtype and the same numbers."""
    if left is right:
        return True  # frozen parameters that both sides share may be most of a model
    return describe(left) == describe(right) and bool(jnp.all(left == right))
