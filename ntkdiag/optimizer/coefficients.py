"""The coefficients of an optimizer's update, from its derivatives on arrays of one element.

At zero gradient, momentum and parameters, where no clip and no trust ratio is active,

    u = U_g g + U_m m + U_theta theta,    m' = A m + B g + C theta,    v' = beta v + floor,

element by element, with u the update, m the momentum and v the second moments. U_g depends on v;
X is U_g over its value at a reference v. Every other coefficient is a multiple of X or a constant,
and derivatives at v and at 4 v tell which.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.optimizer import same_update
from ntkdiag.optimizer.state_fields import Leaves, buffers_of, floats_of, wide, with_later_averages

# A gradient whose square vanishes beside second moments, and is above 0 in float32.
SMALL = 2.0**-60
# Another one, above the eps of transforms that normalize updates and below usual clips.
_LARGER = 2.0**-16
# Second moments at which eps is negligible, and a count at which averages have no bias.
_MOMENT = 4.0**13
_LATE = 2**31 - 2
# The length of directions: betas of two decimals are exact along them in bfloat16.
_LENGTH = 100.0
# Relative differences: of equal learning rates, of a derivative and a difference, of rounding.
SAME = 1e-4
_LINEAR = 1e-3
_ROUNDING = 1e-5

Update = Callable[..., tuple[PyTree, PyTree]]
Pair = tuple[Float[Array, " G"], Float[Array, " G"]]  # a coefficient s X + c, as (s, c)


class Coefficients(NamedTuple):
    """The coefficients of G groups of arrays; all but `swing` are those of the trial step."""

    by_gradient: Float[Array, " G"]  # U_g at the reference v, where X = 1
    by_momentum: Pair  # U_m
    by_params: Pair  # U_theta
    keep: Float[Array, " G"]  # A
    drive: Pair  # B
    drive_by_params: Pair  # C
    # U_g - U_m B / (1 + A) over U_g, of the last step; without the bias correction of young
    # momentum, at second moments as they are.
    swing: Float[Array, " G"]
    learning_rates: Float[Array, " G"]
    is_linear: Bool[Array, " G"]  # whether the update shrinks with the gradient
    betas: Float[Array, " G"]  # 1 without second moments
    floors: Float[Array, " G"]


class _Row(NamedTuple):
    """Where a derivative is taken."""

    moment: float = _MOMENT
    later: int = 0  # steps that averages count more than at the trial step
    gradient: float = 0.0  # the direction
    momentum: float = 0.0
    params: float = 0.0
    size: float = SMALL  # of the gradient


_ROWS = {
    "gradient": _Row(gradient=_LENGTH),
    "gradient, 4 v": _Row(4 * _MOMENT, gradient=_LENGTH),
    "momentum": _Row(momentum=_LENGTH),
    "momentum, 4 v": _Row(4 * _MOMENT, momentum=_LENGTH),
    "params": _Row(params=_LENGTH),
    "params, 4 v": _Row(4 * _MOMENT, params=_LENGTH),
    "last gradient": _Row(later=-1, gradient=_LENGTH),
    "last momentum": _Row(later=-1, momentum=_LENGTH),
    "late gradient": _Row(later=_LATE, gradient=_LENGTH),
    "late gradient, 4 v": _Row(4 * _MOMENT, later=_LATE, gradient=_LENGTH),
    "late momentum": _Row(later=_LATE, momentum=_LENGTH),
    "no moments": _Row(0.0),
    "larger gradient": _Row(later=_LATE, size=_LARGER),
}


class Rule:
    """An optimizer at a point, as a function of arrays by their paths."""

    def __init__(
        self,
        update: Update,
        state: PyTree,
        params: PyTree,
        gradient: PyTree,
        extra_args: Mapping[str, object],
    ) -> None:
        self._update = update
        self._extra_args = extra_args
        self.buffers = buffers_of(state)
        self.momentum_of = {param: path for path, param in self.buffers.momentum.items()}
        self.moment_of = {param: path for path, param in self.buffers.second_moments.items()}
        self.gradient, self._with_gradient = floats_of(gradient)
        self.params, self._with_params = floats_of(params)
        self.micro_steps: Array | int = 1
        self._set_state(state)
        counter = self.buffers.micro_step
        if counter is not None:
            # The last of the k micro-steps of `optax.MultiSteps` makes the step. Its counter goes
            # on by (i + 1) mod k, and so from -2 to k - 1.
            self._set_state(self._at_micro_step(counter, -2))
            _, after = self._call(*self._small_inputs())
            last = _leaf_at(after, counter)
            self._set_state(self._at_micro_step(counter, last))
            self.micro_steps = last + 1

    def _set_state(self, state: PyTree) -> None:
        self.state = state
        self.arrays, self._with_arrays = floats_of(state)

    def _at_micro_step(self, counter: str, step: Array | int) -> PyTree:
        """The state at a micro-step, without accumulated gradients."""

        def leaf_at(path: tuple, leaf: Any) -> Any:
            name = jax.tree_util.keystr(path)
            if name == counter:
                return jnp.full_like(leaf, step)
            return jnp.zeros_like(leaf) if name in self.buffers.accumulated else leaf

        return jax.tree_util.tree_map_with_path(leaf_at, self.state)

    def trial_step(self) -> tuple[PyTree, PyTree]:
        """The update and the state after the step; of all micro-steps, with one gradient."""
        return self._call(self.gradient, {}, self.params)

    def small_update(self, moments: Leaves, later: int) -> Leaves:
        """The update for a small gradient over that gradient, at zero momentum and parameters."""
        gradient = {path: jnp.full_like(wide(leaf), SMALL) for path, leaf in self.gradient.items()}
        momentum = {path: jnp.zeros_like(wide(self.arrays[path])) for path in self.buffers.momentum}
        params = {path: jnp.zeros_like(leaf) for path, leaf in self.params.items()}
        updates, _ = self._call(gradient, momentum | moments, params, later)
        by_path, _ = floats_of(updates)
        return {path: wide(by_path[path]) / SMALL for path in gradient}

    def count(self, param: str) -> Array | None:
        """The steps that its averages have counted; None where they do not."""
        path = self.momentum_of.get(param, self.moment_of.get(param, ""))
        node, _, _ = path.removesuffix(param).rpartition(".")
        return _leaf_at(self.state, f"{node}.count")

    def groups(self) -> list[list[int]]:
        """The arrays of the gradient in groups that share all coefficients, each by size."""
        inputs = self._small_inputs()

        def results(gradient: Leaves, arrays: Leaves, params: Leaves) -> list[Array]:
            trees = self._call(gradient, arrays, params)
            update, after = (floats_of(tree)[0] for tree in trees)
            momenta = [after.get(self.momentum_of.get(p, ""), jnp.zeros(())) for p in self.gradient]
            return [*(update[path] for path in self.gradient), *momenta]

        kinds = []
        for number, leaves in enumerate(inputs):
            for path, leaf in sorted(leaves.items()):
                param_path = self.buffers.all[path] if number == 1 else path
                kinds.append((number, path.removesuffix(param_path), leaf.dtype))
        sizes = [leaf.size for leaf in self.gradient.values()]
        groups = same_update.groups(results, inputs, kinds, n=len(sizes))
        return [sorted(group, key=lambda index: -sizes[index]) for group in groups]

    def coefficients(self, groups: list[list[int]]) -> Coefficients:
        """Derivatives of `update` on arrays of one element, for the first array of each group."""
        paths = [list(self.gradient)[group[0]] for group in groups]
        zero = jnp.zeros(())

        def derivatives(row: _Row) -> tuple[Any, Any]:
            def outputs(x: Array) -> tuple[Array, Array, Array]:
                gradient, arrays, params = self._small_inputs(
                    row.size + x * row.gradient, x * row.momentum, row.moment, x * row.params
                )
                updates, after = self._call(gradient, arrays, params, row.later)
                update, new = (
                    {path: leaf.sum() for path, leaf in floats_of(tree)[0].items()}
                    for tree in (updates, after)
                )
                momenta = [new.get(self.momentum_of.get(path, ""), zero) for path in paths]
                moments = [new.get(self.moment_of.get(path, ""), zero) for path in paths]
                updates = jnp.stack([update[path] for path in paths])
                return updates, jnp.stack(momenta), jnp.stack(moments)

            return jax.jvp(outputs, (jnp.zeros(()),), (jnp.ones(()),))

        rows = jax.tree.map(lambda *column: jnp.array(column), *_ROWS.values())
        (values, _, moments), (u_slopes, m_slopes, _) = jax.vmap(derivatives)(rows)
        u = {name: u_slopes[index] / _LENGTH for index, name in enumerate(_ROWS)}
        m = {name: m_slopes[index] / _LENGTH for index, name in enumerate(_ROWS)}
        value = dict(zip(_ROWS, values, strict=True))
        moment = dict(zip(_ROWS, moments, strict=True))

        # Four times the second moments scale X by this ratio.
        ratio = over(u["gradient, 4 v"], u["gradient"])

        def pair(of: dict[str, Array], name: str) -> Pair:
            total = of[name]
            change = total - of[f"{name}, 4 v"]
            is_part = (jnp.abs(ratio - 1.0) > SAME) & (jnp.abs(change) > _ROUNDING * jnp.abs(total))
            part = jnp.where(is_part, change / jnp.where(is_part, 1.0 - ratio, 1.0), 0.0)
            rest = total - part
            return part, jnp.where(jnp.abs(rest) > _ROUNDING * jnp.abs(total), rest, 0.0)

        has_moments = np.array([path in self.moment_of for path in paths])
        beta = (moment["gradient"] - moment["no moments"]) / _MOMENT
        beta = jnp.where(has_moments, beta, 1.0)
        late_ratio = over(u["late gradient, 4 v"], u["late gradient"], otherwise=1.0)
        root = (_MOMENT * beta) ** (-jnp.log(late_ratio) / math.log(4.0))
        is_one_rate = _are_same(value["larger gradient"] / _LARGER, u["late gradient"])
        rates = root * _learning_rates(u, m, self.micro_steps)
        return Coefficients(
            by_gradient=u["gradient"],
            by_momentum=pair(u, "momentum"),
            by_params=pair(u, "params"),
            keep=m["momentum"],
            drive=pair(m, "gradient"),
            drive_by_params=pair(m, "params"),
            swing=self._swing(paths, u, m),
            learning_rates=jnp.where(is_one_rate, rates, jnp.nan),
            is_linear=_are_same(value["gradient"] / SMALL, u["gradient"]),
            betas=beta,
            floors=moment["no moments"],
        )

    def _swing(
        self, paths: list[str], u: Mapping[str, Array], m: Mapping[str, Array]
    ) -> Float[Array, " G"]:
        """What answers a gradient that changes its sign, over what answers a single one.

        Adam scales momentum by 1 / (1 - A^n) after n steps, n one more with Nesterov's momentum.
        What else the count changes are the second moments, which stay as they are.
        """

        def swing(when: str) -> Float[Array, " G"]:
            by_momentum = u[f"{when} momentum"] * m[f"{when} gradient"]
            return u[f"{when} gradient"] - by_momentum / (1.0 + m[f"{when} momentum"])

        keep = m["momentum"]
        counts = [self.count(path) for path in paths]
        steps = [1 if count is None else count for count in counts]
        n = jnp.stack([jnp.maximum(count, 1).astype(keep.dtype) for count in steps])
        # 1 for a plain average, A / (1 + A) for Nesterov's.
        share = over(u["late momentum"] * m["late gradient"], u["late gradient"] * keep)
        n = jnp.where(share < 0.75, n + 1.0, n)
        of_moments = over(u["last momentum"], u["late momentum"]) * (1.0 - keep**n)
        is_counted = np.array([count is not None for count in counts]) & (of_moments > 0.0)
        stationary = jnp.where(is_counted, of_moments * swing("late"), swing("last"))
        return over(stationary, u["last gradient"])

    def _call(
        self, gradient: Leaves, arrays: Leaves, params: Leaves, later: Array | int = 0
    ) -> tuple[PyTree, PyTree]:
        """What `update` returns; averages count `later` more steps."""
        if not isinstance(self.micro_steps, int):
            gradient = {
                path: leaf * self.micro_steps.astype(leaf.dtype) for path, leaf in gradient.items()
            }
        return self._update(
            self._with_gradient(gradient),
            with_later_averages(self._with_arrays(arrays), later),
            self._with_params(params),
            **self._extra_args,
        )

    def _small_inputs(
        self,
        gradient: Array | float = 0.0,
        momentum: Array | float = 0.0,
        moments: Array | float = 0.0,
        params: Array | float = 0.0,
    ) -> tuple[Leaves, Leaves, Leaves]:
        """Arrays of one element instead of gradient, state and parameters."""

        def small(leaf: Array, value: Array | float) -> Array:
            return jnp.full((1,) * leaf.ndim, value, at_least_float32(leaf.dtype))

        arrays = {}
        for path in self.buffers.all:
            is_moment = path in self.buffers.second_moments
            value = momentum if path in self.buffers.momentum else moments if is_moment else 0.0
            arrays[path] = small(self.arrays[path], value)
        return (
            {path: small(leaf, gradient) for path, leaf in self.gradient.items()},
            arrays,
            {path: small(leaf, params) for path, leaf in self.params.items()},
        )


def _learning_rates(
    u: Mapping[str, Array], m: Mapping[str, Array], micro_steps: Array | int
) -> Float[Array, " G"]:
    """The learning rate over a root of second moments, from averages without bias.

    With plain descent it is -U_g, with a momentum that averages -(U_g + U_m), with one that sums
    -U_m B / A, in Nesterov's form -(U_g - U_m B / A).
    """
    gradient, momentum = u["late gradient"], u["late momentum"]
    a, b = m["late momentum"], m["late gradient"]
    beyond = gradient - over(momentum * b, a)
    is_nesterov = (jnp.abs(beyond) > SAME * jnp.abs(gradient)) & (a != 0.0)
    # Where gradients of micro-steps are summed, the average is of their sum.
    gain = over(b, 1.0 - a)
    is_average = (jnp.abs(gain - 1.0) < SAME) | (jnp.abs(gain - micro_steps) < SAME)
    rates = jnp.where(is_nesterov, beyond, gradient)
    return -jnp.where(is_average & (a != 0.0), gradient + momentum * gain, rates)


def _leaf_at(tree: PyTree, name: str) -> Any:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jax.tree_util.keystr(path) == name:
            return leaf
    return None


def over(
    numerator: Array | float, denominator: Array, otherwise: float = 0.0
) -> Float[Array, "..."]:
    """A quotient, with another value where the denominator is 0."""
    is_zero = denominator == 0.0
    return jnp.where(is_zero, otherwise, numerator / jnp.where(is_zero, 1.0, denominator))


def _are_same(a: Array, b: Array) -> Bool[Array, "..."]:
    return jnp.abs(a - b) <= _LINEAR * jnp.abs(b)
