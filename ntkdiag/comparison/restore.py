"""Saved values put into a model, leaf by leaf, with every difference named.

Every library holds its arrays in another container; a Functional names all of them by path:

1. read the arrays of the model by path: parameters, which have to be saved, and fixed arrays, such
   as batch statistics, which may be;
2. leave out dictionaries that the model does not read, such as a history of the loss, and refuse
   saved arrays of other paths, shapes or dtypes, with all differences at once;
3. put the saved arrays instead of the model's own, which stay only where none were saved.

A linen module alone does not know its arrays: its `init` says, on the probe, which parameters it
has.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.checkpoints.contents import Contents, strip_value_level
from ntkdiag.checkpoints.names import OPTIMIZER_STATES, SELDOM_COLLECTIONS
from ntkdiag.comparison.sources import Classified, Model, classified
from ntkdiag.jaxtools.arguments import leaf_name
from ntkdiag.jaxtools.jaxprs import needs_inputs
from ntkdiag.models import functionalize
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import describe, differences, leaves_by_path, shown, with_leaves

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
    source: Classified
    # The Functional passed as the model, whose options hold for models of a library, too; None
    # where there is none.
    options: Functional | None = None
    x: PyTree = None  # the probe, on which a linen module shows which collections it reads
    with_optimizer: bool = False  # whether states of optimizers are read from checkpoints, too

    @staticmethod
    def of(
        model: Model, common: Classified | None, x: PyTree, *, with_optimizer: bool = False
    ) -> "Template":
        """A template of what the caller gave, or of the model that a side brings."""
        source = classified(model)
        # A Functional that is passed brings its options, such as the mode and what is trainable;
        # one that is a side does not.
        options = source.value if source.kind == "functional" else None
        if model is None and common is not None:
            source = common
        return Template(source, options, x, with_optimizer)

    @functools.cached_property
    def skeleton(self) -> PyTree:
        """The Equinox module, with what it came with, that gives a file its structure; or None."""
        if self.source.kind in ("stateful", "equinox"):
            return self.source.original
        if self.source.kind == "functional" and self.source.value.library == "equinox":
            return self.source.value.restore(self.source.value.params)
        return None

    @functools.cached_property
    def functional(self) -> Functional | None:
        """The model as a Functional, for models that hold their own arrays; None for others."""
        return self.source.functional() if self.source.is_model else None

    @functools.cached_property
    def declared(self) -> list[dict[str, PyTree]]:
        """Shapes of the variables of a linen module, by collection, of each way to call `init`."""
        from ntkdiag.models.linen import declared_variables

        return declared_variables(self.source.value, self.x)

    def fits(self, tree: PyTree) -> bool:
        """Whether a saved tree is the parameters of the model, and fixed arrays of it, by paths."""
        saved = _paths(strip_value_level(tree))
        if self.source.kind == "linen":
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
        if self.source.kind == "linen":
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
        return [_paths(variables.get("params", {})) for variables in self.declared]


def place(
    template: Template, saved: Contents
) -> tuple[Functional, tuple[str, ...], tuple[str, ...]]:
    """Put parameters, and fixed arrays where they were saved, into a model.

    Beside the Functional the paths of the fixed arrays that were not saved, for which the model's
    own stand in, and the names of the collections that the model does not read.
    """
    if template.source.kind == "linen":
        return _into_linen(template, saved)
    if template.functional is not None:
        return _into_functional(template.functional, saved)
    return functionalize(template.source.value, saved.params, check=False), (), ()


def _paths(tree: PyTree) -> set[str]:
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
        got=f"{_counted(lines)}: {'; '.join(lines)}",
        do=do
        or "Compare checkpoints of one model; nothing is restored partially. Parameters that "
        "stand under a key are read by load_params(path, at=key).",
    )


def _counted(lines: list[str]) -> str:
    """How many differences there are, in words."""
    return "1 difference" if len(lines) == 1 else f"{len(lines)} differences"


def _into_linen(
    template: Template, saved: Contents
) -> tuple[Functional, tuple[str, ...], tuple[str, ...]]:
    """A linen module, whose variables are all taken from what was saved."""
    _require_declared(template, saved.params)
    placed = {**saved.collections, "params": saved.params}
    left_out = []
    for name in saved.collections:
        if not _reads(template, placed, name):
            left_out.append(name)
            del placed[name]
    return functionalize(template.source.value, placed, check=False), (), tuple(left_out)


def _require_declared(template: Template, params: PyTree) -> None:
    """Refuse parameters that are not those of a linen module, in paths or shapes."""
    from flax.linen import meta

    # Boxes hold how arrays are laid out on devices. Which dtype they are saved in is left open.
    saved = leaves_by_path(meta.unbox(params))
    fewest: list[str] | None = None
    for declared in template.declared:
        expected = {}
        for path, leaf in leaves_by_path(declared.get("params", {})).items():
            dtype = getattr(saved.get(path), "dtype", leaf.dtype)
            expected[path] = jax.ShapeDtypeStruct(leaf.shape, dtype)
        lines = differences(expected, saved)
        if fewest is None or len(lines) < len(fewest):
            fewest = lines
    if fewest:
        name = type(template.source.value).__name__
        raise errors.StructureError(
            expected=f"parameters of the model: those that {name}.init makes on the examples",
            got=f"{_counted(fewest)}: {shown(fewest)}",
            do="They are of another model: pass the one that was saved. Parameters that stand "
            "under a key are read by load_params(path, at=key); where init makes only some of "
            "them, pass model=ntkdiag.functionalize(model, variables).",
        )


def _reads(template: Template, variables: dict[str, PyTree], name: str) -> bool:
    """Whether the outputs of a linen module on the probe need one of its collections."""
    without = {key: tree for key, tree in variables.items() if key != name}

    def outputs(collection: PyTree) -> PyTree:
        functional = functionalize(
            template.source.value, {**without, name: collection}, check=False
        )
        return functional(functional.params, template.x)

    # Settings and names are not arrays, and no layer computes with them.
    if not all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(variables[name])):
        return False
    try:
        return needs_inputs(outputs, variables[name])
    except Exception:
        return True  # the model does not run: its evaluation raises the error


def _into_functional(
    model: Functional, found: Contents
) -> tuple[Functional, tuple[str, ...], tuple[str, ...]]:
    """A Functional: the parameters are replaced, and of what it holds fixed all that was saved."""
    trainable = leaves_by_path(model.params)
    fixed = _short_paths(model.fixed)
    # Keys and counts of random streams are no part of what was learned: they stay as they are.
    streams = random_streams(fixed)
    saved = {}
    for path, leaf in leaves_by_path(found.params).items():
        saved[model.aliases.get(path, path)] = leaf
    left_out = []
    of_collections: set[str] = set()
    of_params = set(saved)
    # Where two hold the same arrays, as batch statistics and their average do, names tell.
    for name in sorted(found.collections, key=SELDOM_COLLECTIONS.__contains__):
        leaves = _leaves_of_collection(name, found.collections[name], fixed)
        is_copy = name in SELDOM_COLLECTIONS and leaves.keys() & of_collections
        if is_copy or leaves.keys() & of_params or not leaves.keys() & fixed.keys():
            left_out.append(name)
            continue
        if leaves.keys() & of_collections:
            twice = sorted(leaves.keys() & of_collections)
            raise structure_error([f"{path}: in {name} and another collection" for path in twice])
        of_collections |= leaves.keys()
        saved |= leaves
    saved = {path: leaf for path, leaf in saved.items() if path not in streams}
    expected = {path: leaf for path, leaf in fixed.items() if path in saved} | trainable
    lines = differences(expected, saved)
    if lines:
        raise structure_error(lines)

    # 1. The parameters.
    saved_trainable = {path: leaf for path, leaf in saved.items() if path in trainable}
    functional = model.with_params(with_leaves(model.params, saved_trainable), check=False)
    # 2. The fixed arrays, where they differ: `apply` is compiled again for others.
    own_paths = {path.removeprefix("params/"): path for path in model.fixed}
    saved_fixed = {path: saved[short] for short, path in own_paths.items() if short in saved}
    if not all(are_equal(model.fixed[path], leaf) for path, leaf in saved_fixed.items()):
        functional = functional.with_fixed(saved_fixed)
    lacking = [path for path in model.fixed if path not in streams and path not in saved_fixed]
    return functional, tuple(lacking), tuple(left_out)


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


def are_equal(left: Any, right: Any) -> bool:
    """Whether two arrays have one shape, one dtype and the same numbers."""
    if left is right:
        return True  # frozen parameters that both sides share may be most of a model
    return describe(left) == describe(right) and bool(jnp.all(left == right))
