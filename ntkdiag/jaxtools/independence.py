"""Do the examples of a batch interact? Checked on the first call, never assumed.

1. f of the batch is compared with f of each example alone. A difference beyond rounding is an
   interaction.
2. What other examples change may be multiplied by zero for now: in a network whose last layer
   begins as zero, or a branch of it. So NaN is put into all examples but the first: what depends on
   them becomes NaN.
3. Where NaN comes out of the first example, or cannot be put in, that may be for another reason. A
   few examples are compared again at other parameters and inputs, where nothing is zero by chance.

A function that iterates until something holds is not given other numbers than its own, on which it
might never end; one that calls back is not given NaN, which its guards refuse.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from ntkdiag import errors
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.arguments import all_zero
from ntkdiag.jaxtools.caching import hashable
from ntkdiag.jaxtools.precision import roundoff_of_program
from ntkdiag.jaxtools.tracing import committed

Outputs = Float[np.ndarray, "n C"]
Leaf = jax.Array | np.ndarray | np.generic

# Examples that are compared where one has to choose some.
_FEW = 4
# How many times further than its own rounding test moves them outputs may be moved by rounding.
_ROOM = 8
# By how much of their size parameters and inputs are moved to be others.
_MOVE = 0.1
# The scale of outputs that are zero, or nearly so.
_LEAST_SCALE = 1e-30

_JOINTLY = ', or examples="joint" to differentiate the batch as a whole'


def check_few(
    f: Callable[[PyTree, PyTree], PyTree], params: PyTree, x: PyTree, otherwise: str = ""
) -> None:
    """Compare f of the first examples together and one by one."""
    few = _first(x)
    if jax.tree.leaves(few)[0].shape[0] < 2:
        return
    # jit keeps what it compiled by the function, which has to be hashable; of one that is not, the
    # lambda here is another one in every call, and nothing is kept.
    if hashable(f) is f:
        run = jax.jit(f)
    else:
        run = jax.jit(lambda params, x: f(params, x))
    # Elsewhere than on a CPU, rounding would hide the smaller interactions.
    with jax.default_matmul_precision("highest"):
        program = jax.make_jaxpr(f)(params, few)
        check_few_compiled(run, params, few, program, how_to_part(f, otherwise))


def check_few_compiled(
    run: Callable[[PyTree, PyTree], PyTree],
    params: PyTree,
    few: PyTree,
    program: jaxprs.ClosedJaxpr,
    do: str = "",
) -> None:
    """`check_few` of a function that is compiled already; `program` is its jaxpr at these few."""
    judges = jaxprs.judges_numbers(program)
    alone = _each_alone(run, params, few)
    roundoff = roundoff_of_program(program)
    check_independent(run, params, few, alone, roundoff, judges, do)


def how_to_part(f: Callable[..., PyTree] | str, otherwise: str = _JOINTLY) -> str:
    """What to do about examples that interact in the mode of f (or in the mode of this name)."""
    # Do not recommend the mode that is set already.
    mode = f if isinstance(f, str) else getattr(f, "mode", "unspecified")
    if mode == "eval":
        do = (
            "Eval mode does not switch this off: pass the switch of the layer in call_kwargs= of "
            "functionalize"
        )
    elif mode == "unspecified":
        do = "Let f evaluate, not train: running statistics, dropout off or one mask for all"
    elif mode == "dropout":
        do = 'Use mode="eval"'
    else:
        do = 'Use mode="eval" or mode="dropout"'
    return f"{do}{otherwise}."


def check_independent(
    f: Callable[[PyTree, PyTree], PyTree],
    params: PyTree,
    x: PyTree,
    alone: Outputs,
    roundoff: float,
    judges: tuple[bool, bool],
    do: str,
) -> None:
    """Compare f of the whole batch with f of each example alone, which is at hand."""
    loops, calls_back = judges
    # NaN is put in on purpose below, so JAX must not raise for it.
    with jax.debug_nans(False):
        # 1. The batch and each example alone.
        alone = np.asarray(alone, np.float64)
        together = _require_equal(f, params, x, alone, roundoff, do)
        if loops:
            return
        # 2. NaN in all examples but the first.
        if not calls_back and _is_shown_by_nan(f, params, x, together):
            return
        # 3. A few examples at other parameters and inputs.
        params, few = _moved((params, _first(x)))
        try:
            elsewhere = _each_alone(f, params, few)
        except Exception:  # a guard of the function's own refuses these numbers
            return
        _require_equal(f, params, few, elsewhere, roundoff, do)


def _require_equal(
    f: Callable[[PyTree, PyTree], PyTree],
    params: PyTree,
    x: PyTree,
    alone: Outputs,
    roundoff: float,
    do: str,
) -> Outputs:
    """The outputs of a batch, if they are those of each example alone up to rounding."""
    together = _matrix(f(params, x))
    scale = largest_entry(alone)
    worst = largest_difference(together, alone)
    if is_rounding(worst, scale, lambda params: f(params, x), params, roundoff):
        return together
    raise errors.ExamplesInteractError(
        expected="outputs of one example that do not depend on the other examples of the batch",
        got=f"outputs that change by {worst:.2g} (scale {scale:.2g}) when an example is "
        "evaluated by itself",
        do=do,
    )


def _is_shown_by_nan(
    f: Callable[[PyTree, PyTree], PyTree], params: PyTree, x: PyTree, together: Outputs
) -> bool:
    """Whether NaN in all other examples shows that the first one is independent of them."""
    floating = [leaf for leaf in jax.tree.leaves(x) if _is_floating(leaf)]
    if not floating:
        # No NaN can be put in. Only a layer or a gate that is zero could hide an interaction.
        # Biases are vectors, and may well begin as zero.
        leaves = [leaf for leaf in jax.tree.leaves(params) if jnp.ndim(leaf) != 1]
        return not any(_is_floating(leaf) and all_zero(leaf) for leaf in leaves)

    def poisoned(leaf: Leaf) -> Leaf:
        """NaN in every example but the first."""
        if not _is_floating(leaf):
            return leaf
        array = jnp.asarray(leaf)
        is_first = np.arange(len(array)).reshape(-1, *[1] * (array.ndim - 1)) == 0
        return jnp.where(is_first, array, jnp.nan)

    outputs = _matrix(f(params, jax.tree.map(poisoned, x)))
    # If the first example was NaN before, this test shows nothing.
    was_nan = np.isnan(together[0]).any()
    became_nan = np.isnan(outputs[0]).any()
    return bool(was_nan or not became_nan)


def _moved(tree: PyTree) -> PyTree:
    """Other numbers of the same size; where all are zero, of size 0.1."""
    rng = np.random.default_rng(0)

    def moved(leaf: Leaf) -> Leaf:
        if not _is_floating(leaf):
            return leaf
        host = np.asarray(leaf, np.float64)
        size = np.sqrt(np.mean(host**2)) if np.any(host) else 1.0
        host = host + _MOVE * size * rng.normal(size=host.shape)
        return _placed_like(host.astype(leaf.dtype), leaf)

    return jax.tree.map(moved, tree)


def _placed_like(host: np.ndarray | np.generic, leaf: Leaf) -> jax.Array:
    """Numbers on the devices of a leaf, if somebody chose them."""
    if isinstance(leaf, jax.Array) and committed(leaf):
        return jax.device_put(host, leaf.sharding)
    return jnp.asarray(host)


def _each_alone(f: Callable[[PyTree, PyTree], PyTree], params: PyTree, x: PyTree) -> Outputs:
    """Outputs of each example evaluated by itself."""
    outputs = []
    for i in range(jax.tree.leaves(x)[0].shape[0]):
        example = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], x)  # [n ...] -> [1 ...]
        outputs.append(_matrix(f(params, example)))
    return np.concatenate(outputs)


def _first(x: PyTree) -> PyTree:
    """The first few examples."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[:_FEW]), x)


def _is_floating(leaf: Leaf) -> bool:
    """Whether a leaf holds floating-point numbers; random keys and whole numbers do not."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def largest_difference(a: PyTree, b: PyTree) -> float:
    """The largest |a - b| of two trees of outputs [n ...]; infinite if only `b` is not finite."""
    a = _matrix(a)
    b = _matrix(b)
    with np.errstate(invalid="ignore"):
        gaps = np.abs(a - b)
    # NaN in both is no difference: what is not defined cannot change.
    only_in_b = np.isnan(gaps).any() and np.isfinite(a).all()
    gap_of_nan = np.inf if only_in_b else 0.0
    return float(np.nan_to_num(gaps, nan=gap_of_nan).max(initial=0.0))


def largest_entry(outputs: PyTree) -> float:
    """The largest finite |entry| of outputs [n ...]: the scale differences are held against."""
    entries = _matrix(outputs)
    finite = entries[np.isfinite(entries)]
    return float(np.abs(finite).max(initial=0.0))


def is_rounding(
    difference: float,
    scale: float,
    outputs: Callable[[PyTree], PyTree],
    params: PyTree,
    roundoff: float,
) -> bool:
    """Whether rounding explains a difference between outputs of this scale: the one rule for it."""
    # A minimum scale: outputs that are all zero would allow no difference at all.
    if difference <= roundoff**0.5 * max(scale, _LEAST_SCALE):
        return True
    # Outputs may be small differences, such as f(p) - f(p_0). Rounding on the way moves them about
    # as far as rounding the parameters does. So every parameter is moved by a fraction sqrt(eps) of
    # itself, up or down; sqrt(eps) of how far that moves the outputs, eight times, is allowed.
    fraction = roundoff**0.5
    rng = np.random.default_rng(0)

    def moved(leaf: Leaf) -> Leaf:
        if not _is_floating(leaf):
            return leaf
        signs = rng.choice([-1.0, 1.0], leaf.shape)
        return (leaf * (1 + fraction * signs)).astype(leaf.dtype)

    before = _matrix(outputs(params))
    after = _matrix(outputs(jax.tree.map(moved, params)))
    with np.errstate(invalid="ignore"):
        moves = np.abs(after - before)
    largest = moves[np.isfinite(moves)].max(initial=0.0)
    return difference <= _ROOM * fraction * float(largest)


def _matrix(outputs: PyTree) -> Outputs:
    """Outputs of any tree as a matrix [n C] in float64."""
    rows = []
    for leaf in jax.tree.leaves(outputs):
        host = np.asarray(leaf, np.float64)
        rows.append(host.reshape(leaf.shape[0], -1))  # [n ...] -> [n C_leaf]
    return np.concatenate(rows, axis=1)
