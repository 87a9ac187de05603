"""What a step that was made says of the linear response of its optimizer: clips, ratios, misfit.

Around its quiet point an optimizer is linear: see `linear_response`. In a step a clip may have made
the gradient smaller, by a factor c, and a trust ratio the update, by s:

    what went into momentum    m' - A m = c B g + c' C theta
    the update                 u = s (U_m m + c U_g g + c' U_t theta)

with c' = c where the decay is clipped with the gradient, else 1: what went into momentum tells
which it is. Each array tells its c by what went into its momentum, and its s by the update. Without
momentum the update tells one factor only: of all of it, or of all but the weight decay. So there is
one unknown for each equation, and an array of a single number tells them, too. What the response
does not explain is the misfit.

Some elements of each array are looked at, spread over all of it.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ntkdiag import _jax
from ntkdiag.optimizer.linear_response import Inputs, LinearResponse, Outputs
from ntkdiag.optimizer.linearized_update import Leaves

# Elements of each array that are looked at.
_SAMPLE = 128
# An array of so few elements takes the explanation of the others.
_FEW_ELEMENTS = 4
# Updates are small, and squares of small numbers vanish in float32: a power of two before them.
_UNIT = 2.0**30


@dataclasses.dataclass(frozen=True)
class ExplainedStep:
    """How a step compares with the linear response of its optimizer, array by array."""

    scales: Float[Array, " L"]  # s c, by which E of the quiet point is multiplied
    decay_scales: Float[Array, " L"]  # likewise for b
    misfits: Float[Array, " L"]  # what is left of the update, squared, in a unit of their own
    squares: Float[Array, " L"]  # the update, squared, in the same one
    # Whether the update for a swinging gradient goes mostly along it.
    goes_uphill: Bool[Array, " L"]
    is_proportional: Bool[Array, " L"]  # whether there is any update for a swinging gradient
    decay: Float[Array, " L"]  # b of each array, before what scales it is known
    # 1 / (1 - beta2) of second moments, in calls of `update`; 0 without any.
    memory: Float[Array, ""]


def explain_step(response: LinearResponse, made: Leaves) -> ExplainedStep:
    """Compare the update that was made with the linear response."""
    step = _Samples.of(response, made)
    has_momentum = np.isin(list(made), list(response.rule.buffers.momentum.values()))

    # 1. c, from what went into momentum: of the gradient with the decay, or of the gradient alone.
    drive = step.momentum_after - step.kept * step.momentum
    drive_by_decay = step.drive_by_params * step.params
    driven = step.drive_from_gradient + drive_by_decay
    clips = _multiple(drive, driven)
    clips_before_decay = _multiple(drive - drive_by_decay, step.drive_from_gradient)
    of_gradient = clips_before_decay[:, None] * step.drive_from_gradient
    is_before_decay = _are_better(
        _squares(drive - drive_by_decay - of_gradient),
        _squares(drive - clips[:, None] * driven),
        has_momentum,
        made,
    )
    clips = jnp.where(is_before_decay, clips_before_decay, clips)
    clips = jnp.where(has_momentum, clips, 1.0)
    is_decay_clipped = ~is_before_decay & response.is_driven_by_params
    decay_clips = jnp.where(is_decay_clipped, clips, 1.0)

    # 2. s, where all of the update is scaled.
    of_params = step.by_params * step.params
    predicted = step.by_momentum * step.momentum + clips[:, None] * step.from_gradient
    predicted += decay_clips[:, None] * of_params
    scales = _multiple(step.update, predicted)
    misfits = _squares(step.update - scales[:, None] * predicted)

    # 3. Without momentum: a clip, where all but the decay is scaled.
    rest = step.update - of_params
    factors = _multiple(rest, step.from_gradient)
    clipped_misfits = _squares(rest - factors[:, None] * step.from_gradient)
    is_clipped = _are_better(clipped_misfits, misfits, ~has_momentum, made)

    # 4. What answers a swinging gradient, and what decay takes from swinging parameters.
    answer = step.by_whole_gradient - step.by_momentum * step.drive / (1.0 + step.kept)
    decay = step.by_params - step.by_momentum * step.drive_by_params / (1.0 + step.kept)
    downhill = jnp.max(-answer, axis=1, initial=0.0)
    uphill = jnp.max(answer, axis=1, initial=0.0)
    return ExplainedStep(
        scales=jnp.where(is_clipped, factors, scales * clips),
        decay_scales=jnp.where(is_clipped, 1.0, scales * decay_clips),
        misfits=jnp.where(is_clipped, clipped_misfits, misfits),
        squares=_squares(step.update),
        goes_uphill=uphill > downhill,
        is_proportional=(downhill > 0.0) | (uphill > 0.0),
        decay=jnp.max(-decay, axis=1, initial=0.0),
        memory=step.memory,
    )


def _are_better(
    misfits: Float[Array, " L"],
    misfits_of_other: Float[Array, " L"],
    may_be: np.ndarray,
    made: Leaves,
) -> Bool[Array, " L"]:
    """Which of the arrays that may be are explained as well as by the other explanation."""
    is_few = np.array([leaf.size <= _FEW_ELEMENTS for leaf in made.values()])
    # Anything explains a few elements: they are taken as the others are.
    tells = may_be & ~is_few
    tells = tells if tells.any() else may_be
    is_better = misfits <= misfits_of_other
    of_others = _total(misfits, tells) <= _total(misfits_of_other, tells)
    return jnp.asarray(may_be) & jnp.where(is_few, of_others, is_better)


@dataclasses.dataclass(frozen=True)
class _Samples:
    """Some elements of all arrays, `[L S]`, in float32 at least; 0 where an array has no more."""

    update: Float[Array, "L S"]  # u
    params: Float[Array, "L S"]  # theta
    momentum: Float[Array, "L S"]  # m, and `momentum_after` m'
    momentum_after: Float[Array, "L S"]
    by_momentum: Float[Array, "L S"]  # u_m
    from_gradient: Float[Array, "L S"]  # u_g g, with the gradients of earlier micro-steps
    by_whole_gradient: Float[Array, "L S"]  # u_g of a whole step, all of its micro-steps
    by_params: Float[Array, "L S"]  # u_t
    kept: Float[Array, "L S"]  # A
    drive: Float[Array, "L S"]  # b of one
    drive_from_gradient: Float[Array, "L S"]  # b g
    drive_by_params: Float[Array, "L S"]  # C
    memory: Float[Array, ""]  # as in `ExplainedStep`

    @staticmethod
    def of(response: LinearResponse, made: Leaves) -> "_Samples":
        """The elements of a step, and of the derivatives of its optimizer."""
        inputs = response.inputs
        param_of = response.rule.buffers.momentum
        few = _of_elements(response, made)
        along = few.at_its_moments()

        def rows(leaves: Leaves) -> Float[Array, "L S"]:
            """Elements of arrays by the paths of parameters."""
            return _joined(
                {
                    path: _elements(leaves[path], like)
                    for path, like in made.items()
                    if path in leaves
                },
                made,
            )

        def momentum_rows(leaves: Leaves) -> Float[Array, "L S"]:
            """Elements of arrays by the paths of momentum."""
            return rows({param_of[path]: leaf for path, leaf in leaves.items()})

        def derivatives(outputs: Outputs) -> tuple[Float[Array, "L S"], Float[Array, "L S"]]:
            """Of the update and of momentum."""
            # Where second moments are 0 derivatives are infinite, and what they multiply is 0.
            update, momentum = jax.tree.map(
                lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0.0).reshape(-1), outputs
            )
            by_param = {param_of[path]: leaf for path, leaf in momentum.items()}
            return _joined(update, made), _joined(by_param, made)

        by_momentum, kept = derivatives(along(momentum=_ones(few.inputs.momentum)))
        by_gradient, drive = derivatives(along(gradient=_ones(few.inputs.gradient)))
        by_params, drive_by_params = derivatives(along(params=_ones(few.inputs.params)))
        gradient = rows(inputs.gradient)
        from_gradient, drive_from_gradient = by_gradient * gradient, drive * gradient
        if inputs.accumulated:
            by_earlier, earlier_drive = derivatives(
                along(accumulated=_ones(few.inputs.accumulated))
            )
            earlier = rows(_by_parameters(inputs.accumulated))
            from_gradient += by_earlier * earlier
            drive_from_gradient += earlier_drive * earlier
        micro_steps = response.rule.micro_steps.astype(gradient.dtype)
        return _Samples(
            update=rows(made),
            params=rows(inputs.params),
            momentum=momentum_rows(inputs.momentum),
            momentum_after=momentum_rows(response.momentum_after),
            by_momentum=by_momentum,
            from_gradient=from_gradient,
            by_whole_gradient=by_gradient * micro_steps,
            by_params=by_params,
            kept=kept,
            drive=drive * micro_steps,
            drive_from_gradient=drive_from_gradient,
            drive_by_params=drive_by_params,
            memory=few.memory(),
        )


def _of_elements(response: LinearResponse, made: Leaves) -> LinearResponse:
    """The same optimizer on these elements of its arrays alone."""
    inputs = response.inputs
    buffers = response.rule.buffers
    accumulated = {path: path.partition(".acc_grads")[2] for path in inputs.accumulated}

    def few(leaves: Leaves, param_of: Mapping[str, str] | None = None) -> Leaves:
        """Elements along the first axis, and as many axes as there were."""
        taken = {}
        for path, leaf in leaves.items():
            like = made.get(path if param_of is None else param_of[path])
            if like is None:
                taken[path] = jnp.zeros((1,) * leaf.ndim, leaf.dtype)
            else:
                shape = (-1,) + (1,) * (like.ndim - 1) if like.ndim else ()
                taken[path] = _elements(leaf, like).reshape(shape)
        return taken

    return LinearResponse(
        response.rule,
        Inputs(
            gradient=few(inputs.gradient),
            accumulated=few(inputs.accumulated, accumulated),
            momentum=few(inputs.momentum, buffers.momentum),
            params=few(inputs.params),
        ),
        momentum_after={},
        moments=few(response.moments, buffers.second_moments),
    )


def _joined(rows: Mapping[str, Float[Array, " s"]], made: Leaves) -> Float[Array, "L S"]:
    """Rows of one width, with zeros after them; zeros where there is no such array."""
    width = max((min(_SAMPLE, leaf.size) for leaf in made.values()), default=0)
    nothing = jnp.zeros(width)
    joined = []
    for path in made:
        row = rows.get(path, nothing)
        joined.append(jnp.pad(row, (0, width - row.size)))
    return jnp.stack(joined)


def _elements(leaf: Array, like: Array) -> Float[Array, " s"]:
    """Some elements of an array, spread over all of it."""
    flat = jnp.broadcast_to(leaf, like.shape).reshape(-1)
    n_taken = min(_SAMPLE, like.size)
    places = np.linspace(0, max(like.size - 1, 0), n_taken).astype(int)
    # Elements are looked up: a slice could change how XLA lays the whole array out on devices.
    row = flat[places] if n_taken < like.size else flat
    return row.astype(_jax.at_least_float32(row.dtype))


def _by_parameters(accumulated: Leaves) -> Leaves:
    """Accumulated gradients by the paths of parameters, which theirs end with."""
    return {path.partition(".acc_grads")[2]: leaf for path, leaf in accumulated.items()}


def _ones(leaves: Leaves) -> Leaves:
    """Ones, in float32 at least."""
    return {
        path: jnp.ones(leaf.shape, _jax.at_least_float32(leaf.dtype))
        for path, leaf in leaves.items()
    }


def _multiple(rows: Float[Array, "L S"], of: Float[Array, "L S"]) -> Float[Array, " L"]:
    """The factor f of each row that fits rows = f * of best; 1 where `of` is 0."""
    square = _squares(of)
    product = jnp.sum((rows * _UNIT) * (of * _UNIT), axis=1)
    return jnp.where(square == 0.0, 1.0, product / jnp.where(square == 0.0, 1.0, square))


def _squares(rows: Float[Array, "L S"]) -> Float[Array, " L"]:
    """Squared lengths, in a unit in which those of small numbers are not 0."""
    return jnp.sum((rows * _UNIT) ** 2, axis=1)


def _total(numbers: Float[Array, " L"], chosen: np.ndarray) -> Float[Array, ""]:
    return jnp.sum(jnp.where(chosen, numbers, 0.0))
