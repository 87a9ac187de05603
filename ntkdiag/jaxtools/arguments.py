"""Names of parameter leaves, `encoder/0/kernel`, and checks of what is passed to a kernel function.

The sentence at the head of each check is what has to hold; where it does not, the check raises
`InvalidInputError` with what was expected, what came, and what to do. None of them copies an array
from a device: what lies on an accelerator is looked at there.
"""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.tracing import Tracer, is_traced

# How many names a message lists.
_MOST_NAMED = 5
_BYTES_OF_FLOAT32 = 4
# How the parts of a glob are written as a regular expression.
_GLOB_PARTS = re.compile(r"(\*\*/|/\*\*$|\*\*|\*|\?)")
_REGEX_OF_GLOB = {
    "**/": "(?:.*/)?",
    "/**": "(?:/.*)?",
    "**": ".*",
    "*": "[^/]*",
    "?": "[^/]",
}


def leaf_name(path: tuple[object, ...]) -> str:
    """The keys, attributes and positions that lead to a leaf, ``"a/b/0"``; "" for an only leaf."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def matches(glob: str, name: str) -> bool:
    """Whether a glob matches: ``*`` within one part of a name, ``**`` any parts, also none."""
    parts = _GLOB_PARTS.split(glob)  # the signs of a glob, and the plain text between them
    regex = "".join(_REGEX_OF_GLOB.get(part, re.escape(part)) for part in parts)
    return re.fullmatch(regex, name) is not None


def has_shapes_alone(*trees: PyTree) -> bool:
    """Whether any leaf is a shape in place of an array, as plans take them."""
    leaves = jax.tree.leaves(trees)
    return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def check_function(f: object) -> None:
    """Something to call with parameters and examples; modules of Flax are called in another way."""
    # Flax is not imported to look: its modules are known by name.
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(f).__mro__}
    is_module = ("flax", "Module") in bases
    if callable(f) and not is_module:
        return
    kind = type(f).__name__
    raise errors.InvalidInputError(
        expected="a function f(params, x)",
        got=f"the Flax module {kind}" if is_module else f"a {kind}",
        do="Turn a model into one: f, params = ntkdiag.functionalize(model, variables).",
    )


def check_params(params: PyTree, *, finite: bool = True) -> None:
    """Every leaf is a live, real floating array, and with `finite` has no NaN or infinity."""
    leaves = jax.tree.leaves(params)
    if not leaves:
        raise errors.InvalidInputError(
            expected="at least one parameter",
            got="an empty tree",
            do="Pass the parameters of f.",
        )
    dtypes = [getattr(leaf, "dtype", None) for leaf in leaves]
    # Few dtypes for many leaves: each is looked at once.
    refused = set()
    for dtype in set(dtypes):
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            refused.add(dtype)
    if refused:
        first = next(k for k, dtype in enumerate(dtypes) if dtype in refused)
        kind = dtypes[first] or type(leaves[first]).__name__
        raise errors.InvalidInputError(
            expected="parameters that are real floating-point arrays",
            got=f"{kind} at {_names(params, [first])[0]}",
            do=_instead_of(params, leaves[first]),
        )
    check_alive(params, "params")
    # Inside a trace, and of shapes alone, no numbers are known.
    if finite and not is_traced(params) and not has_shapes_alone(params):
        check_finite(params)


def _instead_of(params: PyTree, leaf: object) -> str:
    """What to do with a leaf that is no real floating array."""
    if hasattr(params, "params"):
        return "Pass its `params` alone."
    if isinstance(leaf, float):
        return "Make numbers arrays: jnp.asarray(1.0)."
    # Leaves without a dtype (a name, None) count as integers: neither are parameters.
    if jnp.issubdtype(getattr(leaf, "dtype", np.int32), jnp.complexfloating):
        return (
            "Keep real and imaginary parts as two parameters, and join them in f with "
            "jax.lax.complex."
        )
    return "Hold it fixed: close over it in f, or leave it out with trainable= of functionalize."


def check_finite(params: PyTree) -> None:
    """No leaf holds NaN or infinity, as far as is known."""
    leaves = jax.tree.leaves(params)
    # The search itself may overflow: silence numpy's warning.
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = [k for k, leaf in enumerate(leaves) if not _all_finite(leaf)]
    if not numbers:
        return
    names = _names(params, numbers)
    more = " and more" if len(names) > _MOST_NAMED else ""
    raise errors.InvalidInputError(
        expected="finite parameters",
        got=f"NaN or infinity in {', '.join(names[:_MOST_NAMED])}{more}",
        do="The run has diverged, or the checkpoint is damaged; pass check=False to compute "
        "anyway.",
    )


def check_alive(tree: PyTree, name: str) -> None:
    """No array was donated to a compiled function, or deleted."""
    deleted = []
    for k, leaf in enumerate(jax.tree.leaves(tree)):
        is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
        if is_array and leaf.is_deleted():
            deleted.append(k)
    if deleted:
        names = _names(tree, deleted)
        raise errors.InvalidInputError(
            expected=f"live arrays in {name}",
            got=f"deleted buffers: {', '.join(names[:_MOST_NAMED])}",
            do="They were donated to a compiled function: pass what that function returned "
            "instead.",
        )


def check_choice(value: object, choices: tuple[str, ...], argument: str) -> None:
    """One of a few names."""
    if not isinstance(value, str) or value not in choices:
        raise errors.InvalidInputError(
            argument=argument,
            expected=" or ".join(map(repr, choices)),
            got=repr(value),
            do="Choose one of them.",
        )


def warn_of_no_parameter() -> None:
    """Say that a kernel is zero by construction; a layer may be frozen, but hardly all of them."""
    errors.warn(
        f"{errors.current_call()}: no parameter reaches the outputs of f with a derivative, so "
        "that its kernel is exactly zero. Is all of f under stop_gradient, or does it use other "
        "parameters than `params`?"
    )


def batch_size(x: PyTree, name: str) -> int:
    """Length of the example axis, shared by all leaves."""
    check_alive(x, name)
    leaves = jax.tree.leaves(x)
    # None stands for what has no axis at all; one size that is not zero is what it should be.
    sizes = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in leaves}
    if len(sizes) == 1:
        size = sizes.pop()
        if size:
            return int(size)
    shapes = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(x)[:_MOST_NAMED]:
        shapes.append(f"{name}{jax.tree_util.keystr(path)}: {np.shape(leaf)}")
    do = "Add an example axis in front, or drop the empty batch."
    if len(sizes) > 1 and all(sizes):
        do = (
            "Add an example axis in front; a batch of graphs, whose arrays have axes of nodes, "
            'edges and graphs, is taken by ntk(f, params, x, examples="joint"), with one row for '
            "each of the outputs."
        )
    raise errors.InvalidInputError(
        expected=f"{name} as arrays whose first axis is the examples, the same for all, at least "
        "one",
        got=", ".join(shapes) or "no arrays",
        do=do,
    )


def check_no_nan(x: PyTree, name: str) -> None:
    """No leaf of the examples holds NaN; infinities may be masks. Traced values are not known."""
    if is_traced(x):
        return
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        if _holds_nan(leaf):
            names.append(f"{name}{jax.tree_util.keystr(path)}")
    if names:
        raise errors.InvalidInputError(
            expected=f"examples {name} without NaN",
            got=f"NaN in {', '.join(names[:_MOST_NAMED])}",
            do="Drop the examples that hold it.",
        )


def _holds_nan(leaf: Array | np.ndarray | jax.ShapeDtypeStruct) -> bool:
    """Whether an array of floating numbers holds NaN."""
    if isinstance(leaf, jax.ShapeDtypeStruct) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return False
    if _all_finite(leaf):
        return False
    array = leaf if _lies_off_host(leaf) else np.asarray(leaf)
    return bool((array != array).any())  # NumPy knows no isnan of bfloat16


def _names(tree: PyTree, numbers: list[int]) -> list[str]:
    """Names of some leaves, by their numbers."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return [leaf_name(paths[k]) or "the only leaf" for k in numbers]


def all_zero(leaf: Array | np.ndarray) -> bool:
    """Whether an array holds nothing but zeros."""
    if _lies_off_host(leaf):
        return not jnp.any(leaf)
    return not np.any(np.asarray(leaf))


def _all_finite(leaf: Array | np.ndarray) -> bool:
    """Whether an array holds no NaN or infinity."""
    if _lies_off_host(leaf):
        return bool(jnp.isfinite(leaf).all())
    array = np.asarray(leaf)
    if array.dtype.itemsize < _BYTES_OF_FLOAT32:  # numpy adds them slowly, and overflows
        array = array.astype(np.float32)
    # The sum settles it in one cheap pass, unless it overflows or is the sum of both infinities,
    # of which NumPy would warn the user.
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum()
    return math.isfinite(total) or bool(np.isfinite(array).all())


def _lies_off_host(leaf: Array | np.ndarray) -> bool:
    """Whether an array lies on an accelerator, or in several processes: it is not copied here."""
    return isinstance(leaf, jax.Array) and not _on_host(leaf.sharding)


@functools.lru_cache(maxsize=64)
def _on_host(sharding: jax.sharding.Sharding) -> bool:
    """Whether everything laid out so lies in the memory of this process."""
    # Most models have one sharding for hundreds of arrays: it is looked at once.
    if not sharding.is_fully_addressable:
        return False
    return next(iter(sharding.device_set)).platform == "cpu"
