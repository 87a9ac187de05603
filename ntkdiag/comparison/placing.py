"""Saved values put into a model, leaf by leaf, with every difference named."""

import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.models import functionalize
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import describe, differences, leaves_by_path

Leaves = dict[str, Any]


def place(
    model: Any, variables: Any, params: Any, collections: Mapping[str, Any]
) -> tuple[Functional, str]:
    """Put parameters, and fixed collections where they were saved, into a model.

    Args:
        model: A Functional, a linen module, an NNX or Equinox model, or a callable `f(params, x)`.
        variables: Variables of a linen module, which state its structure and fill in collections that were not
            saved; None takes everything from what was saved.
        params: Saved tree: the parameters, for NNX and Equinox with any fixed arrays among them.
        collections: Saved collections beside the parameters, by name.

    Returns:
        The Functional with these values, and one sentence on where its fixed arrays come from.

    Raises:
        StructureError: Paths, shapes or dtypes differ from the model's; all differences are listed.
    """
    if isinstance(model, Functional):
        return _into_functional(model, params, collections)
    if _is(model, "flax.linen", "Module"):
        return _into_linen(model, variables, params, collections)
    if _is(model, "flax.nnx", "Module"):
        return _into_nnx(model, params)
    if _is(model, "equinox", "Module"):
        return _into_equinox(model, params)
    return functionalize(model, params, check=False), "none"


def as_model(model: Any) -> Any:
    """The linen module itself for its bound method `module.apply`; everything else as it is."""
    owner = getattr(model, "__self__", None)
    is_apply = getattr(model, "__name__", "") == "apply" and _is(owner, "flax.linen", "Module")
    return owner if is_apply else model


def is_plain_callable(model: Any) -> bool:
    """Whether a model is just `f(params, x)`, which says nothing about the structure of its parameters."""
    libraries = (("flax.linen", "Module"), ("flax.nnx", "Module"), ("equinox", "Module"))
    return (
        callable(model)
        and not isinstance(model, Functional)
        and not any(_is(model, *name) for name in libraries)
    )


def structure_error(lines: list[str]) -> errors.StructureError:
    """The error that lists every difference by path."""
    count = f"{len(lines)} difference{'s' if len(lines) != 1 else ''}"
    return errors.StructureError(
        expected="parameters with the same paths, shapes and dtypes on both sides and in the model",
        got=f"{count}: {'; '.join(lines)}",
        do="Compare checkpoints of one model; nothing is restored in part.",
    )


def _into_linen(
    module: Any, variables: Any, params: Any, collections: Mapping[str, Any]
) -> tuple[Functional, str]:
    from flax import core

    own = core.unfreeze(variables) if variables is not None else {}
    own_rest = {name: tree for name, tree in own.items() if name != "params"}
    kept = {name: tree for name, tree in collections.items() if not own or name in own_rest}
    lines = differences(own["params"], params) if "params" in own else []
    for name, tree in kept.items():
        lines += differences({name: own_rest[name]}, {name: tree}) if name in own_rest else []
    if lines:
        raise structure_error(lines)
    functional = functionalize(module, {**own_rest, **kept, "params": params}, check=False)
    return functional, _provenance(leaves_by_path(kept), functional.fixed)


def _into_nnx(model: Any, params: Any) -> tuple[Functional, str]:
    from flax import nnx

    own = leaves_by_path(nnx.to_pure_dict(nnx.state(model)))
    random = set(leaves_by_path(nnx.to_pure_dict(nnx.state(model, nnx.RngState))))
    required = set(leaves_by_path(nnx.to_pure_dict(nnx.state(model, nnx.Param))))
    saved = {path: leaf for path, leaf in leaves_by_path(params).items() if path not in random}
    _require_fit(own, saved, required)
    copy = nnx.clone(model)
    state = nnx.state(copy)
    pure = nnx.to_pure_dict(state)
    nnx.replace_by_pure_dict(state, _replaced(pure, saved))
    nnx.update(copy, state)
    functional = functionalize(copy, check=False)
    fixed = {path: leaf for path, leaf in functional.fixed.items() if path not in random}
    return functional, _provenance(
        {path: leaf for path, leaf in saved.items() if path in fixed}, fixed
    )


def _into_equinox(module: Any, params: Any) -> tuple[Functional, str]:
    import equinox as eqx

    own = leaves_by_path(eqx.filter(module, eqx.is_array))
    required = set(leaves_by_path(eqx.filter(module, eqx.is_inexact_array)))
    saved = leaves_by_path(params)
    _require_fit(own, saved, required)
    functional = functionalize(_replaced(module, saved), check=False)
    return functional, _provenance(
        {path: leaf for path, leaf in saved.items() if path in functional.fixed}, functional.fixed
    )


def _into_functional(
    model: Functional, params: Any, collections: Mapping[str, Any]
) -> tuple[Functional, str]:
    trainable, saved = leaves_by_path(model.params), leaves_by_path(params)
    fixed = {
        path.removeprefix("params/"): leaf for path, leaf in model.fixed.items()
    }  # linen names collections
    _require_fit({**fixed, **trainable}, saved, set(trainable))
    chosen = {path: leaf for path, leaf in saved.items() if path in trainable}
    functional = model.with_params(_replaced(model.params, chosen), check=False)
    beside = {**saved, **leaves_by_path(collections)}
    differing = [
        path for path, leaf in fixed.items() if path in beside and not _equal(leaf, beside[path])
    ]
    if not model.fixed:
        return functional, "none"
    said = f"those of the Functional given as model= ({_some(list(model.fixed))})"
    return functional, said + (
        f"; the saved {_some(differing)} differ and are not used" if differing else ""
    )


def _require_fit(own: Leaves, saved: Leaves, required: set[str]) -> None:
    wanted = {path: leaf for path, leaf in own.items() if path in required or path in saved}
    lines = differences(wanted, saved)
    if lines:
        raise structure_error(lines)


def _replaced(tree: Any, values: Leaves) -> Any:
    paths = iter(leaves_by_path(tree))
    return jax.tree.map(lambda leaf: _asarray(values.get(next(paths), leaf)), tree)


def _asarray(leaf: Any) -> Any:
    return jnp.asarray(leaf) if hasattr(leaf, "__array_interface__") else leaf


def _provenance(saved: Leaves, fixed: Leaves) -> str:
    if not fixed:
        return "none"
    if not saved:
        return f"those of the model as given ({_some(list(fixed))}); none were saved"
    rest = [path for path in fixed if path not in saved]
    return f"as saved ({_some(list(saved))})" + (
        f"; {_some(rest)} those of the model as given" if rest else ""
    )


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:4]) + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")


def same_leaves(a: Leaves, b: Leaves) -> bool:
    """Whether two dictionaries hold the same arrays under the same paths."""
    return a.keys() == b.keys() and all(_equal(a[path], b[path]) for path in a)


def _equal(left: Any, right: Any) -> bool:
    return describe(left) == describe(right) and bool(jnp.all(left == right))


def _is(model: Any, library: str, name: str) -> bool:
    loaded = sys.modules.get(library)
    return loaded is not None and isinstance(model, getattr(loaded, name))
