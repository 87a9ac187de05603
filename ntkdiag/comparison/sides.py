"""The two things to be compared, brought to one form: a Functional with its name and its fixed state."""

import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ntkdiag import errors
from ntkdiag.checkpoints.contents import NOT_COLLECTIONS, read_contents, strip_value_level
from ntkdiag.comparison.placing import is_plain_callable, place, same_leaves, structure_error
from ntkdiag.models import functionalize
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import differences, leaves_by_path

_AT_STEP = re.compile(r"(?P<root>.+)@(?P<step>\d+)")


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        label: Its name in tables.
        functional: Model and parameters.
        fixed_state: Where the arrays that are not parameters come from, in words.
        path: The checkpoint path as given; None for values in memory.
        step: Step number, where the checkpoint has one.
        saved_dtypes: Dtypes of the parameters as they came, before JAX could narrow them.
        shares_model: Whether the values were put into the model common to both sides.
    """

    label: str
    functional: Functional
    fixed_state: str
    path: str | None
    step: int | None
    saved_dtypes: tuple[str, ...]
    shares_model: bool


def read_side(
    source: Any,
    *,
    name: str,
    label: str | None,
    model: Any,
    variables: Any,
    like: Functional | None,
) -> Side:
    """Bring one argument of `compare` to a Functional; its parameters are known to be finite.

    `name` is ``"A"`` or ``"B"``, the label where neither `label` nor a path gives one; `like` is a Functional whose
    options hold for models, too.
    """
    path, step = None, None
    if isinstance(source, str | os.PathLike):
        path, step = split_step(source)
        contents = read_contents(path, step)
        values, collections = contents.params, contents.collections
        label = label or contents.location.label
        step = contents.location.step
    elif is_model(source) and not _is_part(source, model):
        values, collections = None, {}
    else:
        values, collections = _split(source, model)
    shares_model = values is not None
    if values is None:
        functional = _functional(source, like)
        fixed_state = "its own" if functional.fixed else "none"
        values = functional.params
    else:
        _require_finite({**leaves_by_path(values), **leaves_by_path(collections)})
        functional, fixed_state = place(_require_model(model), variables, values, collections)
    _require_finite(leaves_by_path(functional.params))
    floating = [leaf for leaf in jax.tree.leaves(values) if _is_floating(leaf)]
    dtypes = sorted({str(np.dtype(leaf.dtype)) for leaf in floating})
    return Side(label or name, functional, fixed_state, path, step, tuple(dtypes), shares_model)


def split_step(source: str | os.PathLike[str]) -> tuple[str, int | None]:
    """A path and the step it names: ``root@100`` is step 100 of a manager root, unless there is such a path."""
    path = os.fspath(source)
    at_step = _AT_STEP.fullmatch(path)
    if at_step is None or os.path.exists(os.path.expanduser(path)):
        return path, None
    return at_step["root"], int(at_step["step"])


def require_comparable(a: Side, b: Side) -> tuple[Side, Side]:
    """Refuse two sides that are the same checkpoint, or whose parameters differ in paths, shapes or dtypes.

    Args:
        a: Side A.
        b: Side B.

    Returns:
        The sides, with labels that tell them apart.

    Raises:
        InvalidInputError: Both are the same step of the same path.
        StructureError: They differ; all differences are listed.
    """
    if (
        a.path is not None
        and b.path is not None
        and (_absolute(a.path), a.step) == (_absolute(b.path), b.step)
    ):
        raise errors.InvalidInputError(
            expected="two different checkpoints",
            got=f"{a.path} {a.label} twice",
            do='Two steps of one manager root are "root@0" and "root@100".',
        )
    lines = differences(a.functional.params, b.functional.params)
    if lines:
        raise structure_error(lines)
    if a.shares_model and b.shares_model and same_leaves(a.functional.fixed, b.functional.fixed):
        # One function for both sides: it is compiled once.
        functional = a.functional.with_params(b.functional.params, check=False)
        b = dataclasses.replace(b, functional=functional)
    if a.label != b.label:
        return a, b
    return dataclasses.replace(a, label=f"A: {a.label}"), dataclasses.replace(
        b, label=f"B: {b.label}"
    )


def _absolute(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))


def _split(tree: Any, model: Any) -> tuple[Any, dict[str, Any]]:
    """Parameters and collections of a tree in memory: a variables dict, a train state, or parameters alone."""
    if is_plain_callable(model) and isinstance(tree, Mapping):
        return tree, {}  # f(params, x) takes what it is given, be it a variables dict
    if not isinstance(tree, Mapping) and hasattr(tree, "params"):
        collections = {
            name: getattr(tree, name)
            for name in ("batch_stats",)
            if getattr(tree, name, None) is not None
        }
        return tree.params, collections
    if isinstance(tree, Mapping) and "params" in tree:
        beside = {key: sub for key, sub in tree.items() if key not in ("params", *NOT_COLLECTIONS)}
        return tree["params"], {key: sub for key, sub in beside.items() if isinstance(sub, Mapping)}
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(tree, nnx.State):
        return nnx.to_pure_dict(tree), {}
    return strip_value_level(tree), {}


def is_model(source: Any) -> bool:
    """Whether an argument of `compare` knows its own function."""
    modules = (("flax.nnx", "Module"), ("equinox", "Module"))
    loaded = [
        getattr(sys.modules[library], name) for library, name in modules if library in sys.modules
    ]
    return isinstance(source, (Functional, *loaded))


def _is_part(source: Any, model: Any) -> bool:
    """Whether an Equinox module holds parameters only, as `equinox.filter` and `partition` leave it."""
    module = getattr(sys.modules.get("equinox"), "Module", ())
    if isinstance(source, Functional) or not isinstance(source, module):
        return False
    fewer = isinstance(model, module) and len(jax.tree.leaves(source)) < len(jax.tree.leaves(model))
    return fewer or is_plain_callable(model)


def _functional(source: Any, like: Functional | None) -> Functional:
    """A model as a Functional, with the options of another one where there is one."""
    if isinstance(source, Functional) or like is None:
        return source if isinstance(source, Functional) else functionalize(source, check=False)
    if like.extract is None or like.fixed:
        raise errors.InvalidInputError(
            expected="parameters, beside a Functional as model= that holds arrays fixed",
            got=f"a {type(source).__name__}, which has such arrays of its own",
            do="Pass a Functional for each side, made with the same options.",
        )
    return like.with_params(like.extract(source), check=False)


def _require_model(model: Any) -> Any:
    if model is None:
        raise errors.InvalidInputError(
            expected="model= beside parameters that do not know their function",
            got="model=None",
            do="Pass a Functional, a linen, NNX or Equinox model, or a callable f(params, x).",
        )
    return model


def _require_finite(leaves: dict[str, Any]) -> None:
    wrong = [
        path
        for path, leaf in leaves.items()
        if _is_floating(leaf) and not np.isfinite(_float(leaf)).all()
    ]
    if wrong:
        raise errors.InvalidInputError(
            expected="finite parameters and fixed arrays",
            got=f"NaN or infinity in {', '.join(wrong)}",
            do="Compare a checkpoint from before training diverged.",
        )


def _is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)


def _float(leaf: Any) -> np.ndarray:
    return np.asarray(leaf).astype(np.float32 if np.dtype(leaf.dtype).itemsize < 4 else leaf.dtype)
