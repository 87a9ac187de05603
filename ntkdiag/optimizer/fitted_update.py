"""The usual optimizers, read from their buffers by fitting the update that was made.

Plain descent, heavy-ball and Nesterov momentum, Adam and its like, LAMB keep at most one momentum
buffer m and one second moment v for each parameter. With clips, schedules, decay and trust ratios
as numbers by array, all of them are, after the step,

    m' = beta m + alpha g,     update = -(a_m m' + a_g g) / (sqrt(v') + eps) - b theta,

and the numbers come from least squares:

1. eps, where there are second moments: multiplied out, the update is linear in it;
2. beta and alpha: as if nothing was clipped, one number; if that leaves a misfit, both;
3. a_m, a_g, b: with momentum alone, as Nesterov does, or any; the simplest that explains it. An
   array of a few elements would be explained by anything, and decays as the others do or not.

A gradient that changes its sign at every step makes m' = alpha g / (1 + beta), so that half the
update that answers it is

    E = (a_m alpha / (1 + beta) + a_g) / (2 (sqrt(v') + eps)).

Each array tells its numbers by a few hundred of its elements, spread over all of it: all arrays
together are one batch of small problems, in a program that is no larger than the optimizer's own.
This is `quiet_point` for optimizers whose buffers are known.
"""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ntkdiag.optimizer.explained_update import least_squares
from ntkdiag.optimizer.quiet_point import Leaves, floats_of

# Classes of states that the usual optimizers consist of.
_USUAL_STATES = frozenset(
    (
        "ApplyIfFiniteState",
        "EmptyState",
        "InjectHyperparamsState",
        "InjectStatefulHyperparamsState",
        "MaskedNode",
        "MaskedState",
        "PartitionState",
        "ScaleByAdamState",
        "ScaleByScheduleState",
        "TraceState",
        "WrappedScheduleState",
        "ZeroNansState",
    )
)
_MOMENTUM = ("mu", "trace")
_SECOND_MOMENT = "nu"
# Squares of small numbers vanish in float32: a power of two before them.
_UNIT = 2.0**30
# From so many elements on, an array tells eps by itself; below so many, it tells no decay.
_MANY_ELEMENTS = 64
_FEW_ELEMENTS = 8
# Elements of each array that are looked at.
_SAMPLE = 256
# A simpler explanation is taken if its misfit is no more than so many times the smallest.
_SIMPLER = 3.0
_ROUNDOFF = 1e-6
# A pull of momentum towards 0 that is roundoff.
_NO_PULL = 1e-6
# A misfit of m' from which on clipping is looked for.
_CLIPPED = 3e-4


@dataclasses.dataclass(frozen=True)
class Fitted:
    """What a fit of the update tells.

    Attributes:
        response: E by path.
        is_downhill: Whether no array goes along its gradient.
        decay: b, of the array that decays most.
        residual: The misfit over all arrays, relative to the update.
        memory: 1 / (1 - beta2), the steps that second moments remember; 0 without any.
        has_update: Whether the update is not zero.
        has_history: Whether sums of gradients have any yet; True without. What an average keeps is
            told by its first gradient, too.
    """

    response: Leaves
    is_downhill: Bool[Array, ""]
    decay: Float[Array, ""]
    residual: Float[Array, ""]
    memory: Float[Array, ""]
    has_update: Bool[Array, ""]
    has_history: Bool[Array, ""]


@dataclasses.dataclass(frozen=True)
class Buffers:
    """The buffers of the parameters in a state, by the paths of the parameters.

    Attributes:
        momentum: m.
        second_moment: v.
        is_average: Of each momentum, whether it is an average of gradients and not their sum.
    """

    momentum: Leaves
    second_moment: Leaves
    is_average: dict[str, bool]


def usual_buffers(state: PyTree, params: PyTree) -> Buffers | None:
    """The buffers of a usual optimizer; None for another one, whose buffers mean something else."""
    if not _state_classes(state) <= _USUAL_STATES:
        return None
    weights, _ = floats_of(params)
    arrays, _ = floats_of(state)
    momentum: Leaves = {}
    second_moment: Leaves = {}
    is_average = {}
    for state_path, leaf in arrays.items():
        # "[0].mu['Dense_0']['kernel']" -> "mu", "['Dense_0']['kernel']"
        found = re.fullmatch(r".*?\.(mu|trace|nu)((?:\[.*|\..*)?)", state_path)
        if found is None:
            continue
        field, path = found.groups()
        if path not in weights or leaf.shape != weights[path].shape:
            return None
        buffers = second_moment if field == _SECOND_MOMENT else momentum
        if path in buffers:
            return None
        buffers[path] = leaf
        if field in _MOMENTUM:
            is_average[path] = field == "mu"
    # Sums of scaled gradients are another optimizer: RMSprop with momentum.
    if any(path in second_moment and not average for path, average in is_average.items()):
        return None
    return Buffers(momentum, second_moment, is_average)


def fit(gradient: PyTree, before: Buffers, after: Buffers, params: PyTree, made: PyTree) -> Fitted:
    """Fit the update that a usual optimizer made of a gradient."""
    updates, _ = floats_of(made)
    gradients, _ = floats_of(gradient)
    weights, _ = floats_of(params)
    sampled = _Sampled(
        update=_samples(updates, updates),
        gradient=_samples(gradients, updates),
        weight=_samples(weights, updates),
        moment=_samples(after.second_moment, updates),
        old_moment=_samples(before.second_moment, updates),
        momentum=_samples(after.momentum, updates),
        old_momentum=_samples(before.momentum, updates),
        sizes=np.array([leaf.size for leaf in updates.values()]),
        has_moment=np.array([path in after.second_moment for path in updates]),
        has_momentum=np.array([path in after.momentum for path in updates]),
        is_average=np.array([before.is_average.get(path, False) for path in updates]),
    )
    epsilon = _epsilons(sampled)
    inverse = _inverse_denominators(sampled, epsilon)
    swing = _swing(sampled)
    explanation = _explained(sampled, inverse, swing)
    of_momentum, of_gradient, of_params = explanation.factors.T
    answer = -0.5 * (of_momentum * swing.gain / (1.0 + swing.kept) + of_gradient)  # [array]
    # Decay that goes through momentum and second moments pulls as a curvature does.
    largest = jnp.where(sampled.momentum != 0.0, inverse, 0.0).max(axis=1)
    coupled = 2.0 * answer * swing.pull * largest

    response = {}
    for place, (path, leaf) in enumerate(updates.items()):
        denominator = jnp.ones(leaf.shape, answer.dtype)
        if path in after.second_moment:
            moment = after.second_moment[path].astype(answer.dtype)
            denominator = jnp.sqrt(moment) + epsilon[place]
        response[path] = answer[place] * _inverse(denominator)
    return Fitted(
        response=response,
        is_downhill=jnp.all(answer >= 0.0),
        decay=jnp.max(coupled - of_params),
        residual=jnp.sqrt(_ratio(explanation.misfit, explanation.total)),
        memory=_memory(sampled, swing),
        has_update=explanation.total > 0.0,
        has_history=_has_history(sampled),
    )


@dataclasses.dataclass(frozen=True)
class _Sampled:
    """Some elements of all arrays, [array element], in float32 at least; zeros where are none.

    Attributes:
        update: u.
        gradient: g.
        weight: theta.
        moment: v'.
        old_moment: v.
        momentum: m'.
        old_momentum: m.
        sizes: Elements of each array.
        has_moment: Whether an array has second moments.
        has_momentum: Whether it has momentum.
        is_average: Whether that is an average of gradients, and not their sum.
    """

    update: Float[Array, "l e"]
    gradient: Float[Array, "l e"]
    weight: Float[Array, "l e"]
    moment: Float[Array, "l e"]
    old_moment: Float[Array, "l e"]
    momentum: Float[Array, "l e"]
    old_momentum: Float[Array, "l e"]
    sizes: np.ndarray
    has_moment: np.ndarray
    has_momentum: np.ndarray
    is_average: np.ndarray

    @property
    def tells(self) -> np.ndarray:
        """Which arrays have enough elements to tell decay and momentum; all, if none has."""
        tells = self.sizes > _FEW_ELEMENTS
        return tells if tells.any() else np.ones_like(tells)


@dataclasses.dataclass(frozen=True)
class _Swing:
    """How momentum goes on: m' = kept m + gain (g + pull theta); 0 without momentum."""

    kept: Float[Array, " l"]
    gain: Float[Array, " l"]
    pull: Float[Array, " l"]


@dataclasses.dataclass(frozen=True)
class _Explanation:
    """The simplest explanation of the update.

    Attributes:
        factors: Of scaled momentum, scaled gradient and parameters, for each array.
        misfit: What is left of the update, squared.
        total: The update, squared.
    """

    factors: Float[Array, "l 3"]
    misfit: Float[Array, ""]
    total: Float[Array, ""]


def _samples(leaves: Leaves, like: Leaves) -> Float[Array, "l e"]:
    """Some elements of each array; zeros where there is no such array."""
    rows = []
    for path, leaf in like.items():
        row = jnp.zeros(0)
        if path in leaves:
            row = jnp.atleast_1d(leaves[path][_spread(leaf.shape)])
        dtype = jnp.promote_types(row.dtype, jnp.float32)
        rows.append(jnp.pad(row.astype(dtype), (0, _SAMPLE - row.size)))
    return jnp.stack(rows)


def _spread(shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Indices of `_SAMPLE` elements at most, spread over the whole array.

    Single elements are looked up: slices would take part in how arrays are laid out over devices,
    and training would not be the same to the last bit.
    """
    size = math.prod(shape)
    flat = np.unique(np.linspace(0, max(size - 1, 0), min(_SAMPLE, size)).astype(int))
    return np.unravel_index(flat, shape)


def _epsilons(sampled: _Sampled) -> Float[Array, " l"]:
    """eps of every array with second moments, 0 for the others.

    u = -a_m m' / s - a_g g / s - eps u / s - b theta - b eps theta / s, s = sqrt(v').
    """
    by_root = _inverse(jnp.sqrt(sampled.moment))
    rows = (sampled.update, sampled.momentum, sampled.gradient, sampled.weight)
    gram = _gram(sampled.update, sampled.weight, *(row * by_root for row in rows))
    factors = least_squares(gram[:, 1:, 1:], gram[:, 1:, 0])
    own = jnp.where(sampled.has_moment, jnp.maximum(-factors[:, 1], 0.0), 0.0)  # of u / s
    # What a few elements say about eps is nothing: they get what the others say.
    tells = sampled.has_moment & (sampled.sizes >= _MANY_ELEMENTS)
    if not tells.any():
        tells = sampled.has_moment & sampled.tells
    if not tells.any():
        return own
    return jnp.where(sampled.has_moment & ~tells, jnp.median(own[tells]), own)


def _inverse_denominators(sampled: _Sampled, epsilon: Float[Array, " l"]) -> Float[Array, "l e"]:
    """1 / (sqrt(v') + eps), 0 where that is infinite; 1 without second moments."""
    inverse = _inverse(jnp.sqrt(sampled.moment) + epsilon[:, None])
    return jnp.where(sampled.has_moment[:, None], inverse, 1.0)


def _swing(sampled: _Sampled) -> _Swing:
    """beta and alpha, of m' = beta m + alpha (g + pull theta)."""
    # As if the gradient came as it is: m' - m = (1 - beta) (g - m), or m' - g = beta m.
    is_average = sampled.is_average[:, None]
    change = sampled.momentum - jnp.where(is_average, sampled.old_momentum, sampled.gradient)
    towards = sampled.gradient - sampled.old_momentum
    towards = jnp.where(is_average, towards, sampled.old_momentum)
    rows = (sampled.momentum, sampled.old_momentum, sampled.gradient, sampled.weight)
    gram = _gram(*rows, change, towards)
    slope = _ratio(gram[:, 4, 5], gram[:, 5, 5])
    rest = gram[:, 4, 4] - slope * gram[:, 4, 5]
    kept = jnp.where(sampled.is_average, 1.0 - slope, slope)
    gain = jnp.where(sampled.is_average, slope, 1.0)
    # With a clip, or with weight decay that goes into momentum, all are unknown.
    others = least_squares(gram[:, 1:4, 1:4], gram[:, 1:4, 0])
    is_other = rest > _CLIPPED**2 * gram[:, 0, 0]
    kept = jnp.where(is_other, others[:, 0], kept)
    gain = jnp.where(is_other, others[:, 1], gain)
    pull = jnp.where(is_other, _ratio(others[:, 2], others[:, 1]), 0.0)
    # What a few elements say of three numbers is nothing: they keep what the others of their kind
    # keep, and tell one number.
    for kind in (sampled.is_average, ~sampled.is_average):
        of_kind = kind & sampled.has_momentum
        tells = of_kind & sampled.tells
        if tells.any():
            few = of_kind & ~tells
            kept = jnp.where(few, jnp.median(kept[tells]), kept)
            own_gain = _ratio(gram[:, 0, 2] - kept * gram[:, 1, 2], gram[:, 2, 2])
            gain = jnp.where(few, own_gain, gain)
            pull = jnp.where(few, jnp.median(pull[tells]), pull)
    has_momentum = sampled.has_momentum
    return _Swing(
        kept=jnp.where(has_momentum, jnp.clip(kept, 0.0, 1.0), 0.0),
        gain=jnp.where(has_momentum, gain, 0.0),
        pull=jnp.where(has_momentum & (jnp.abs(pull) > _NO_PULL), pull, 0.0),
    )


def _explained(sampled: _Sampled, inverse: Float[Array, "l e"], swing: _Swing) -> _Explanation:
    """The simplest explanation of the update: by momentum, as Nesterov does, or by any mixture."""
    rows = (sampled.momentum * inverse, sampled.gradient * inverse, sampled.weight)
    directions = jnp.stack(rows, axis=1)  # [array direction element]
    gram = _gram(sampled.update, *rows)

    def left_by(factors: Float[Array, "c l 3"]) -> Float[Array, "c l"]:
        """What factors leave of the update, squared."""
        predicted = jnp.einsum("cld,lde->cle", factors, directions, precision="highest")
        return (((sampled.update - predicted) * _UNIT) ** 2).sum(axis=2)

    frames = _frames(sampled, swing)
    found = [_within(frame, gram[:, 1:, 1:], gram[:, 1:, 0]) for frame in frames]
    factors = jnp.stack([each for each, _ in found])  # [candidate array direction]
    main = jnp.stack([unknowns[:, 0] for _, unknowns in found])
    misfits = left_by(factors)
    total = ((sampled.update * _UNIT) ** 2).sum(axis=1)
    tells = sampled.tells
    misfit = misfits[:, tells].sum(axis=1)
    most = _SIMPLER**2 * misfit.min() + _ROUNDOFF**2 * total[tells].sum()
    choice = jnp.argmax(misfit <= most)  # the first that is simple enough

    # Arrays of a few elements decay as the others do, relative to their update, or not at all, as
    # masks often have it.
    share = jnp.median(_ratio(factors[choice, tells, 2], main[choice, tells]))
    decaying = [frame.at[:, 2, 0].set(share)[:, :, :-1] for frame in frames]
    decayed = jnp.stack([_within(frame, gram[:, 1:, 1:], gram[:, 1:, 0])[0] for frame in decaying])
    left = left_by(decayed)[choice]
    decays = ~tells & (left < misfits[choice])
    return _Explanation(
        jnp.where(decays[:, None], decayed[choice], factors[choice]),
        jnp.where(decays, left, misfits[choice]).sum(),
        total.sum(),
    )


def _frames(sampled: _Sampled, swing: _Swing) -> list[Float[Array, "l 3 k"]]:
    """What each candidate may combine, of scaled momentum, scaled gradient and parameters."""
    kept, gain = swing.kept, swing.gain
    # Arrays of a few elements would take anything for decay.
    may_decay = jnp.asarray(sampled.tells, kept.dtype)
    decay = may_decay[:, None, None] * jnp.array([[0.0], [0.0], [1.0]], kept.dtype)
    by_gradient = jnp.tile(jnp.array([0.0, 1.0, 0.0], kept.dtype), (len(kept), 1))
    by_momentum = jnp.tile(jnp.array([1.0, 0.0, 0.0], kept.dtype), (len(kept), 1))
    nesterov = kept[:, None] * by_momentum + gain[:, None] * by_gradient
    has_momentum = sampled.has_momentum[:, None]
    by_momentum = jnp.where(has_momentum, by_momentum, by_gradient)
    nesterov = jnp.where(has_momentum, nesterov, by_gradient)

    def frame(*columns: Array) -> Float[Array, "l 3 k"]:
        """Columns [array 3] beside that of the decay."""
        return jnp.concatenate([jnp.stack(columns, axis=2), decay], axis=2)

    return [frame(by_momentum), frame(nesterov), frame(by_momentum, by_gradient)]


def _within(
    frame: Float[Array, "l 3 k"], gram: Float[Array, "l 3 3"], products: Float[Array, "l 3"]
) -> tuple[Float[Array, "l 3"], Float[Array, "l k"]]:
    """The least-squares factors of each array that its frame spans, and those in the frame."""
    own_gram = jnp.einsum("lik,lij,ljm->lkm", frame, gram, frame, precision="highest")
    own_products = jnp.einsum("lik,li->lk", frame, products, precision="highest")
    unknowns = least_squares(own_gram, own_products)
    return jnp.einsum("lik,lk->li", frame, unknowns, precision="highest"), unknowns


def _memory(sampled: _Sampled, swing: _Swing) -> Float[Array, ""]:
    """1 / (1 - beta2), with v' - v = (1 - beta2) (g^2 - v); 0 without second moments."""
    # The gradient as it came to the buffers: alpha = 1 - beta if nothing was clipped.
    clip = jnp.where(sampled.has_momentum, _ratio(swing.gain, 1.0 - swing.kept), 1.0)[:, None]
    gradient = clip * (sampled.gradient + swing.pull[:, None] * sampled.weight)
    unit = _inverse(sampled.moment)  # of ratios of tiny numbers
    change = (sampled.moment - sampled.old_moment) * unit
    towards = (gradient**2 - sampled.old_moment) * unit
    gram = _gram(change, towards)
    share = _ratio(gram[:, 0, 1], gram[:, 1, 1])
    is_share = sampled.has_moment & (share > 0.0) & (share < 1.0)
    return jnp.max(jnp.where(is_share, _inverse(share), 0.0))


def _has_history(sampled: _Sampled) -> Bool[Array, ""]:
    """Whether some sum of gradients is not zero any more, where there are sums."""
    is_sum = sampled.has_momentum & ~sampled.is_average
    if not is_sum.any():
        return jnp.ones((), bool)
    return jnp.any(sampled.old_momentum[is_sum] != 0.0)


def _state_classes(state: PyTree) -> set[str]:
    """Names of the classes of named tuples in a state."""
    names = set()

    def note_name(node: object) -> bool:
        """Note the class of a state on the way down the tree."""
        if hasattr(node, "_fields"):
            names.add(type(node).__name__)
        return False  # no node is a leaf: the walk goes on into it

    jax.tree.leaves(state, is_leaf=note_name)
    return names


def _gram(*rows: Float[Array, "l e"]) -> Float[Array, "l k k"]:
    """Inner products of rows, array by array."""
    stacked = jnp.stack(rows, axis=1) * _UNIT
    return jnp.einsum("lke,lme->lkm", stacked, stacked, precision="highest")


def _ratio(numerator: Array, denominator: Array) -> Array:
    """A quotient, 0 where there is none."""
    is_zero = denominator == 0.0
    return jnp.where(is_zero, 0.0, numerator / jnp.where(is_zero, 1.0, denominator))


def _inverse(leaf: Array) -> Array:
    """1 / x, and 0 for 0."""
    return _ratio(jnp.ones_like(leaf), leaf)
