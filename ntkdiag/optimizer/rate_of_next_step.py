"""The learning rate of a usual optimizer at one step, from its answers to chosen gradients.

An Optax optimizer does not say its rate: a schedule is a function inside it. But at parameters of
zero, where nothing decays, let one element of each array get a gradient c so small that nothing is
clipped, and its buffers values with which the answer is known:

    plain descent               -rate c
    momentum, of 0              -rate c, with Nesterov's -rate (1 + beta) c
    averages, of c and c^2      -rate c / (c + eps)

Two values of c, and one other momentum, give rate, eps and beta; one more c shows whether this is
the optimizer. Counts are those of the step, but for Adam's own: an average that is c has no bias
left to correct.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag.optimizer.descent_reading import Update
from ntkdiag.optimizer.fitted_update import usual_buffers
from ntkdiag.optimizer.quiet_point import Leaves, floats_of, zeros_like

_SIZES = (1.0, 2.0, 4.0)  # c, in units of
_SMALL = 1e-6  # without second moments, and
_ABOVE_EPS = 1e-3  # beside the eps of those
_TOLERANCE = 1e-3
_TOLERANCE_IN_ROUNDINGS = 8.0


def learning_rate_at(update: Update, state: PyTree, params: PyTree) -> float:
    """The learning rate of the next step; NaN where it is not known, or not one for all arrays.

    Args:
        update: `optimizer.update`, compiled for its own good: it is called four times.
        state: The state of the optimizer.
        params: The parameters, as the optimizer holds them.
    """
    buffers = usual_buffers(state, params)
    if buffers is None:
        return math.nan
    unit = _ABOVE_EPS if buffers.second_moment else _SMALL
    sizes = [unit * size for size in _SIZES]
    answers = []
    for size in sizes:
        made, _ = _answer(update, state, params, size, momentum=0.0)
        answers.append(made)
    swung, beta = _answer(update, state, params, sizes[0], momentum=sizes[0])

    rates = []
    for path, dtype in _dtypes(params).items():
        values = np.array([answer[path] for answer in answers])
        if not values.any():
            continue  # an array that is not trained
        tolerance = max(_TOLERANCE, _TOLERANCE_IN_ROUNDINGS * float(jnp.finfo(dtype).eps))
        if path in buffers.second_moment:
            rates.append(_beside_eps(np.array(sizes), values, tolerance))
        else:
            rate = _proportional(np.array(sizes), values, tolerance)
            rates.append(rate / _nesterov(values[0], swung[path], beta.get(path, 0.0), tolerance))
    if not rates or not np.isclose(rates, rates[0], rtol=tolerance).all():
        return math.nan
    return float(np.median(rates))


def _answer(
    update: Update, state: PyTree, params: PyTree, size: float, momentum: float
) -> tuple[dict[str, float], dict[str, float]]:
    """What one step takes from the first element of each array, and beta of sums of gradients."""
    weights, with_weights = floats_of(params)
    gradients = {path: _first(leaf, size) for path, leaf in weights.items()}
    trial = _with_buffers(state, size, momentum)
    made, after = update(with_weights(gradients), trial, with_weights(zeros_like(weights)))
    updates, _ = floats_of(made)
    taken = {path: -_first_of(leaf) for path, leaf in updates.items()}
    kept = {}
    buffers = usual_buffers(after, params)
    if buffers is not None and momentum:
        for path, leaf in buffers.momentum.items():
            # beta m + g, with m = g.
            kept[path] = 0.0 if buffers.is_average[path] else _first_of(leaf) / size - 1.0
    return taken, kept


def _with_buffers(state: PyTree, size: float, momentum: float) -> PyTree:
    """The state with other buffers: averages that nothing corrects, and sums of gradients."""

    def is_kind(node: object) -> bool:
        return type(node).__name__ in ("ScaleByAdamState", "TraceState")

    def changed(node: PyTree) -> PyTree:
        """One state of those kinds."""
        if type(node).__name__ == "TraceState":
            return node._replace(trace=_first_elements(node.trace, momentum))
        if type(node).__name__ == "ScaleByAdamState":
            return node._replace(
                count=jnp.full_like(node.count, jnp.iinfo(node.count.dtype).max),
                mu=_first_elements(node.mu, size),
                nu=_first_elements(node.nu, size**2),
            )
        return node

    return jax.tree.map(changed, state, is_leaf=is_kind)


def _proportional(sizes: np.ndarray, values: np.ndarray, tolerance: float) -> float:
    """rate, of answers rate c; NaN where they are not."""
    rates = values / sizes
    return float(rates[0]) if np.isclose(rates, rates[0], rtol=tolerance).all() else math.nan


def _beside_eps(sizes: np.ndarray, values: np.ndarray, tolerance: float) -> float:
    """rate, of answers rate c / (c + eps), with c / answer = (c + eps) / rate; NaN where not."""
    if not (values > 0).all():
        return math.nan
    quotients = sizes / values
    slope = (quotients[2] - quotients[0]) / (sizes[2] - sizes[0])  # 1 / rate
    between = quotients[0] + slope * (sizes[1] - sizes[0])
    return 1.0 / slope if np.isclose(between, quotients[1], rtol=tolerance) else math.nan


def _nesterov(without: float, swung: float, beta: float, tolerance: float) -> float:
    """The factor beside the rate: 1, or 1 + beta with Nesterov's momentum; NaN where neither."""
    # With m = g, heavy-ball momentum answers 1 + beta times as much, Nesterov's 1 + beta + beta^2
    # in the place of 1 + beta.
    ratio = swung / without
    if np.isclose(ratio, 1.0 + beta, rtol=tolerance):
        return 1.0
    is_nesterov = np.isclose(ratio, (1.0 + beta + beta**2) / (1.0 + beta), rtol=tolerance)
    return 1.0 + beta if is_nesterov else math.nan


def _first_elements(tree: PyTree, value: float) -> PyTree:
    """A tree of zeros, but for the first element of each array."""
    leaves, whole = floats_of(tree)
    return whole({path: _first(leaf, value) for path, leaf in leaves.items()})


def _first(leaf: Array, value: float) -> Array:
    """Zeros, but for the first element."""
    return jnp.zeros(leaf.size, leaf.dtype).at[:1].set(value).reshape(leaf.shape)


def _first_of(leaf: Array) -> float:
    """The first element."""
    return float(np.asarray(leaf, np.float64).reshape(-1)[0]) if leaf.size else 0.0


def _dtypes(params: PyTree) -> dict[str, np.dtype]:
    """Path -> dtype, of the arrays that have gradients."""
    leaves: Leaves = floats_of(params)[0]
    return {path: leaf.dtype for path, leaf in leaves.items()}
