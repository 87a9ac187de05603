"""An optimizer at its quiet point, where it is linear in gradients, momentum and parameters.

Gradient, parameters and momentum buffers are zero there; counts, keys and hyperparameters are
those of the step; second moments are such that the step leaves them as the real step left them.
No clip and no trust ratio is active, and squares of the gradient have no derivative. What is left
of the optimizer's own `update` is linear,

    u = U_g g + U_m m + U_t theta,      m <- A m + B g + C theta,

and all of it comes from derivatives of `update`. A gradient that changes its sign at every step
makes the buffers do the same, -m = A m + B g, so that the update that answers it is

    u = (U_g - U_m (I + A)^-1 B) g,     and likewise (U_t - U_m (I + A)^-1 C) theta.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ntkdiag import _jax
from ntkdiag.optimizer.optimizer_error import OptimizerError

Leaves = dict[str, Array]  # the floating arrays of a tree, by their paths
Answer = tuple[Leaves, Leaves]  # an update, and the new state
Step = Callable[[Leaves, Leaves, Leaves], Answer]

# Zero would do but for roots, whose derivative there is infinite: these numbers vanish beside
# every eps, and their squares are numbers of float32 still.
_TINY_GRADIENT = 1e-16
_TINY_SECOND_MOMENT = 1e-30
# The spectrum of I + A lies in [1, 2]: each round leaves a third of the error.
_ROUNDS = 18
_RELAXATION = 2.0 / 3.0


@dataclasses.dataclass(frozen=True)
class LinearizedUpdate:
    """An optimizer as the linear map that it is at its quiet point."""

    # The optimizer as a function of floating arrays, (g, state, theta) -> (u, new state).
    step: Step
    still: Leaves  # the state at the quiet point
    linear: Callable[[Leaves], Answer]  # its derivative in the state there
    rest: Leaves  # the update with nothing to answer: noise, mostly zero
    by_gradient: Leaves  # u_g, elementwise
    drive: Leaves  # b, elementwise, by the paths of the state
    by_params: Leaves  # u_t, elementwise
    decay_drive: Leaves  # c, elementwise, by the paths of the state
    is_driven_by_params: bool  # whether C may be other than zero, by the program
    gradient: Leaves  # zeros, like the gradient
    # All floating leaves of the state: momentum as the step found it, zero elsewhere.
    buffers: Leaves
    params: Leaves  # zeros, like the parameters
    # Of each leaf of the state, whether it is a momentum buffer.
    is_momentum: dict[str, Bool[Array, ""]]
    accumulated: Leaves  # the gradients of micro-steps before this one, as `MultiSteps` keeps them
    # How many micro-steps make this step, by the whole state; 1 without any.
    micro_steps: Float[Array, ""]
    # The largest 1 / (1 - beta2) of second moments, in calls of `update`; 0 without any.
    memory: Float[Array, ""]
    # Whether there are second moments, and nothing went into them yet.
    is_before_first_step: Bool[Array, ""]

    def by_gradient_at(self, params: Leaves) -> Answer:
        """U_g and B, elementwise, where the parameters are not zero."""
        tiny = {path: _tiny(leaf, jnp.ones(())) for path, leaf in self.gradient.items()}
        ones = jax.tree.map(jnp.ones_like, tiny)

        def along(gradient: Leaves) -> Answer:
            """The optimizer as a function of the gradient."""
            return self.step(gradient, self.still, params)

        _, (update, buffers) = jax.jvp(along, (tiny,), (ones,))
        return update, self.momentum_of(buffers)

    def to_buffers(self, *directions: Leaves) -> list[Answer]:
        """U_m and A times some directions, by one batched derivative."""
        if not self.buffers:
            return [(zeros_like(self.gradient), {}) for _ in directions]
        cast = [_cast(direction, self.buffers) for direction in directions]
        updates, new_buffers = jax.vmap(self.linear)(jax.tree.map(_stacked, *cast))
        answers = []
        for row in range(len(directions)):
            momentum = self.momentum_of(_row(new_buffers, row))
            answers.append((_row(updates, row), momentum))
        return answers

    def momentum_of(self, buffers: Leaves) -> Leaves:
        """The momentum among the leaves of a state, zero elsewhere."""
        return {path: _kept(leaf, self.is_momentum[path]) for path, leaf in buffers.items()}

    def in_series(self, tolerance: float) -> Bool[Array, ""]:
        """Whether momentum goes through buffers one after the other.

        A gradient of one step is then answered later by more than it was at first: the answers
        u0, u1, u2 of the steps that follow have u1^2 > u0 u2. For one buffer, or averages side by
        side, the sequence is geometric, or bent the other way.
        """
        is_bent = jnp.zeros((), bool)
        if not self.buffers:
            return is_bent
        ((second, kept),) = self.to_buffers(self.drive)
        ((third, _),) = self.to_buffers(kept)
        for path, first in self.by_gradient.items():
            square = second[path] ** 2
            excess = square - first * third[path]
            later = (first * second[path] > 0.0) & (excess > tolerance * square)
            is_bent = is_bent | jnp.any(later)
        return is_bent

    def swinging(self) -> tuple[Leaves, Leaves]:
        """U_m (I + A)^-1 B and U_m (I + A)^-1 C: what buffers add while they swing."""
        nothing = zeros_like(self.gradient)
        if not self.buffers:
            return nothing, nothing
        drive = {path: leaf * self.micro_steps for path, leaf in self.drive.items()}
        if not self.is_driven_by_params:
            (by_gradient,) = self._relaxed([drive])
            return by_gradient, nothing
        by_gradient, by_params = self._relaxed([drive, self.decay_drive])
        return by_gradient, by_params

    def _relaxed(self, drives: list[Leaves]) -> list[Leaves]:
        """U_m (I + A)^-1 d for some drives d of the momentum."""

        def round_of(
            carried: tuple[list[Leaves], list[Leaves]],
        ) -> tuple[list[Leaves], list[Leaves]]:
            """One relaxation of (I + A) m = d; the update is that of the m that came in."""
            momenta, _ = carried
            answers = self.to_buffers(*momenta)
            relaxed = []
            for drive, momentum, (_, decayed) in zip(drives, momenta, answers, strict=True):
                relaxed.append(jax.tree.map(_relaxed, drive, momentum, decayed))
            return relaxed, [update for update, _ in answers]

        drives = [_at_least_float32(drive) for drive in drives]
        start = (drives, [zeros_like(self.gradient) for _ in drives])
        start = jax.tree.map(_like_result, start, jax.eval_shape(round_of, start))
        _, updates = jax.lax.fori_loop(0, _ROUNDS, lambda _, carried: round_of(carried), start)
        return updates


def linearized_update(
    update: Callable[..., tuple[PyTree, PyTree]],
    gradient: PyTree,
    state: PyTree,
    state_after: PyTree,
    params: PyTree,
    extra_args: Mapping[str, object],
) -> LinearizedUpdate:
    """Bring an optimizer to the quiet point of a step; `state` is the one before it."""
    gradients, with_gradients = floats_of(gradient)
    weights, with_weights = floats_of(params)
    before, with_buffers = floats_of(state)
    # Hyperparameters stay as they are, and what was accumulated goes along with the gradient.
    before = {path: leaf for path, leaf in before.items() if ".hyperparams[" not in path}
    after, _ = floats_of(state_after)
    after = {path: after[path] for path in before}
    accumulated, micro_steps = accumulated_gradients(state)

    def step(gradients: Leaves, buffers: Leaves, weights: Leaves) -> Answer:
        """The optimizer as a function of floating arrays alone."""
        made, new_state = update(
            with_gradients(gradients), with_buffers(buffers), with_weights(weights), **extra_args
        )
        updates, _ = floats_of(made)
        new_buffers, _ = floats_of(new_state)
        return (
            {path: updates[path] for path in gradients},
            {path: new_buffers[path] for path in buffers},
        )

    no_weights = zeros_like(weights)
    # A derivative in reverse alone is refused here: JAX would do so as late as it compiles.
    if _jax.contains(jax.make_jaxpr(step)(gradients, after, weights), "custom_vjp_call"):
        raise OptimizerError("TypeError: a part of it has a derivative in reverse only")
    ones = jax.tree.map(jnp.ones_like, gradients)
    still = {path: _floored(leaf) for path, leaf in after.items()}
    still.update(zeros_like(accumulated))

    # 1. Momentum is what moves with the gradient, whichever sign that has: the derivative of a
    #    second moment changes its sign with it. While buffers are not zero yet, more may move
    #    (AdaBelief's second moment by its momentum), so it is asked twice.
    def moves(is_candidate: dict[str, Bool[Array, ""]]) -> dict[str, Bool[Array, ""]]:
        """Which leaves of the state move with the gradient where the candidates are zero."""
        buffers = {path: _kept(leaf, ~is_candidate[path]) for path, leaf in still.items()}

        def rates(sign: Float[Array, ""]) -> Leaves:
            """The derivatives of the new state in the gradient, at a tiny gradient."""
            tiny = {path: _tiny(leaf, sign) for path, leaf in gradients.items()}
            new_buffers = functools.partial(_new_buffers, step, buffers=buffers, params=no_weights)
            _, moved = jax.jvp(new_buffers, (tiny,), (ones,))
            return moved

        signed = jax.vmap(rates)(jnp.array([1.0, -1.0]))
        return {path: _is_even(leaf) for path, leaf in signed.items()}

    is_momentum = {path: jnp.zeros((), bool) for path in still}
    is_momentum = jax.lax.fori_loop(0, 2, lambda _, flags: moves(flags), is_momentum)
    for path in accumulated:
        is_momentum[path] = jnp.zeros((), bool)

    # 2. Second moments, new(v) = c + beta2 v: those that the step takes to where they are after it.
    tiny = {path: _tiny(leaf, jnp.ones(())) for path, leaf in gradients.items()}
    found = {path: before[path] if leaf.ndim == 0 else still[path] for path, leaf in after.items()}
    found = {path: _kept(leaf, ~is_momentum[path]) for path, leaf in found.items()}
    found.update(zeros_like(accumulated))
    unmoved = {
        path: jnp.where(is_momentum[path], 0, 1).astype(v.dtype) for path, v in found.items()
    }
    unmoved = {path: jnp.broadcast_to(unmoved[path], v.shape) for path, v in found.items()}

    def new_moments(buffers: Leaves) -> Leaves:
        """The state after an update without a gradient."""
        _, new_buffers = step(zeros_like(gradients), buffers, no_weights)
        return new_buffers

    new, betas = jax.jvp(new_moments, (found,), (unmoved,))
    buffers = {}
    memory = jnp.zeros(())
    has_gone_in = jnp.zeros((), bool)
    for path, leaf in found.items():
        beta = jnp.where(is_momentum[path], 0.0, betas[path])
        solved = _solved(leaf, after[path], new[path], beta)
        buffers[path] = _kept(_floored(solved), ~is_momentum[path])
        remembers = (beta > 0.0) & (beta < 1.0)
        memories = jnp.where(remembers, 1.0 / (1.0 - jnp.where(remembers, beta, 0.0)), 0.0)
        memory = jnp.maximum(memory, jnp.max(memories, initial=0.0).astype(memory.dtype))
        has_gone_in |= jnp.any(remembers & (after[path] != 0.0))
    buffers.update(zeros_like(accumulated))

    # 3. The linear map of what is left. A derivative for each argument by itself: what does not
    #    move then stands in no program.
    def along_gradient(gradients: Leaves) -> Answer:
        """The optimizer as a function of the gradient."""
        return step(gradients, buffers, no_weights)

    def along_buffers(buffers: Leaves) -> Answer:
        """The optimizer as a function of its state."""
        return step(tiny, buffers, no_weights)

    def along_params(weights: Leaves) -> Answer:
        """The optimizer as a function of the parameters."""
        return step(tiny, buffers, weights)

    def buffers_by_params(weights: Leaves) -> Leaves:
        """The new state as a function of the parameters."""
        _, new_buffers = along_params(weights)
        return new_buffers

    (rest, _), linear = jax.linearize(along_buffers, buffers)
    _, (by_gradient, drive) = jax.jvp(along_gradient, (tiny,), (ones,))
    all_weights = jax.tree.map(jnp.ones_like, no_weights)
    _, (by_params, decay_drive) = jax.jvp(along_params, (no_weights,), (all_weights,))
    momentum = {path: _kept(leaf, is_momentum[path]) for path, leaf in before.items()}
    return LinearizedUpdate(
        step=step,
        still=buffers,
        linear=linear,
        rest={path: _beside(leaf, by_gradient[path] * tiny[path]) for path, leaf in rest.items()},
        by_gradient=by_gradient,
        drive={path: _kept(leaf, is_momentum[path]) for path, leaf in drive.items()},
        by_params=by_params,
        decay_drive={path: _kept(leaf, is_momentum[path]) for path, leaf in decay_drive.items()},
        is_driven_by_params=_jax.needs_inputs(buffers_by_params, no_weights),
        gradient=zeros_like(gradients),
        buffers=momentum,
        params=no_weights,
        is_momentum=is_momentum,
        accumulated=accumulated,
        micro_steps=micro_steps,
        memory=memory * micro_steps,
        is_before_first_step=(memory > 0.0) & ~has_gone_in,
    )


def floats_of(tree: PyTree) -> tuple[Leaves, Callable[[Mapping[str, Array]], PyTree]]:
    """The floating arrays of a tree by path, and what puts others of these paths in their place."""
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = [(jax.tree_util.keystr(path), leaf) for path, leaf in with_paths]
    floats = {path: jnp.asarray(leaf) for path, leaf in named if is_float(leaf)}

    def whole(replaced: Mapping[str, Array]) -> PyTree:
        """The tree with these arrays; whatever else it holds stays."""
        return jax.tree.unflatten(structure, [replaced.get(path, leaf) for path, leaf in named])

    return floats, whole


def is_float(leaf: object) -> bool:
    """Whether a leaf is an array of floating-point numbers."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def signs(leaf: Array) -> Array:
    """Signs without a pattern, the same ones for all arrays of a shape."""
    numbers = jax.lax.iota(jnp.uint32, math.prod(leaf.shape)).reshape(leaf.shape)
    bits = (numbers * jnp.uint32(2654435761)) >> 15
    bits = (bits ^ (bits >> 7)) & 1
    return jnp.where(bits == 1, 1, -1).astype(leaf.dtype)


def zeros_like(leaves: Leaves) -> Leaves:
    """Zeros of the same shapes and dtypes."""
    return {path: jnp.zeros_like(leaf) for path, leaf in leaves.items()}


def accumulator_paths(state: PyTree) -> dict[str, str]:
    """Path of the counter of micro-steps -> how paths of the gradients accumulated by it begin."""
    with_paths, _ = jax.tree_util.tree_flatten_with_path(state)
    paths = [jax.tree_util.keystr(path) for path, _ in with_paths]
    found = {}
    for path in paths:
        prefix = path.removesuffix(".mini_step")
        if prefix != path:
            found[path] = prefix + ".acc_grads"
    return found


def accumulated_gradients(state: PyTree) -> tuple[Leaves, Float[Array, ""]]:
    """The gradients that `optax.MultiSteps` accumulated, and the number of this micro-step."""
    with_paths, _ = jax.tree_util.tree_flatten_with_path(state)
    named = {jax.tree_util.keystr(path): leaf for path, leaf in with_paths}
    accumulated = {}
    micro_steps = jnp.ones(())
    for counter, prefix in accumulator_paths(state).items():
        micro_steps = jnp.asarray(named[counter]) + jnp.ones(())
        for path, leaf in named.items():
            if path.startswith(prefix):
                accumulated[path] = jnp.asarray(leaf)
    return accumulated, micro_steps


def _new_buffers(step: Step, gradients: Leaves, *, buffers: Leaves, params: Leaves) -> Leaves:
    """The new state alone."""
    _, new_buffers = step(gradients, buffers, params)
    return new_buffers


def _is_even(signed: Array) -> Bool[Array, ""]:
    """Whether derivatives at a gradient and its opposite are rather equal than opposite."""
    plus, minus = signed
    return jnp.any(jnp.abs(plus + minus) > jnp.abs(plus - minus))


def _solved(v: Array, after: Array, new: Array, beta: Array) -> Array:
    """The second moments that the step takes to `after`, where it takes `v` to `new`."""
    missing = after - new
    moves = (missing != 0.0) & (beta > 0.0)
    solved = v + missing / jnp.where(moves, beta, 1.0)
    return jnp.where(moves & jnp.isfinite(solved), solved, v).astype(v.dtype)


def _tiny(leaf: Array, sign: Float[Array, ""]) -> Array:
    """A gradient that vanishes beside everything."""
    return (_TINY_GRADIENT * sign * signs(leaf)).astype(leaf.dtype)


def _beside(update: Array, answer: Array) -> Array:
    """What there is in an update beside the answer to a tiny gradient; zero if it is roundoff."""
    rest = update - answer
    return jnp.where(jnp.abs(rest) > 1e-3 * jnp.abs(answer), rest, 0.0)


def _floored(leaf: Array) -> Array:
    """The leaf with something tiny in the place of zeros."""
    return jnp.where(leaf == 0.0, _TINY_SECOND_MOMENT, leaf).astype(leaf.dtype)


def _kept(leaf: Array, keep: Bool[Array, ""]) -> Array:
    """The leaf, or zeros."""
    return jnp.where(keep, leaf, jnp.zeros_like(leaf)).astype(leaf.dtype)


def _relaxed(drive: Array, momentum: Array, decayed: Array) -> Array:
    """One step of the relaxation towards (I + A) m = d."""
    return (momentum + _RELAXATION * (drive - momentum - decayed)).astype(momentum.dtype)


def _like_result(leaf: Array, result: jax.ShapeDtypeStruct) -> Array:
    """A start of the loop in the dtype that its rounds return."""
    return leaf.astype(result.dtype)


def _cast(direction: Leaves, like: Leaves) -> Leaves:
    """A direction in the dtypes of what it is a direction of."""
    return {path: direction[path].astype(leaf.dtype) for path, leaf in like.items()}


def _at_least_float32(leaves: Leaves) -> Leaves:
    """The leaves in float32, or in their own dtype where that is wider."""
    return {
        path: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        for path, leaf in leaves.items()
    }


def _stacked(*leaves: Array) -> Array:
    """Rows of one batch."""
    return jnp.stack(leaves)


def _row(batched: Leaves, row: int) -> Leaves:
    """One row of a batch."""
    return {path: leaf[row] for path, leaf in batched.items()}
