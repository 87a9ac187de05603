"""Numbers of two checkpoints of a run: the change of the kernel, and how one predicts the other.

With K_i the kernel, U_i the leading modes of the centred one, f_i the outputs and theta_i the
parameters of checkpoint i, and s_i what the model holds beside them, such as running statistics:

    distance            S   = 1 - <K_i, K_j> / (||K_i|| ||K_j||), and S_c, centred over examples
    overlap             ||U_i^T U_j||_F^2 / m, of the m <= 10 leading modes that both resolve
    e1[i -> j]          ||f_j - f_lin|| / ||f_j - f_start||, the network linearized at i:
                        f_start = f(theta_i, s_j),  f_lin = f_start + J (theta_j - theta_i)
    e2[i -> j]          the same for the quadratic Taylor model at i
    agreement[i -> j]   share of the decisions of f_j that f_lin takes, too

Linear predictions are one `jax.jvp` each, by one compiled program. Statistics are those of j
throughout, so that their effect is no error of the prediction.

Two steps of training may lie so close that the change of the outputs is rounding. Then e1 is a
ratio of rounding errors, and is NaN; it stays if either the change or the error is far above
rounding.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.precision import in_full_precision
from ntkdiag.linearization.taylor import taylor_expand
from ntkdiag.measuring.fit import Rule, agreement, decision_rule
from ntkdiag.measuring.measure import Measured
from ntkdiag.measuring.probed_function import ProbedFunction

_OF_PAIRS = ("distance", "distance_centred", "overlap")
_OF_PAIRS += ("e1_to", "e1_from", "agreement_to", "agreement_from")
# Rounding below this share of the change cannot move e1 across 0.1.
_RESOLVED = 0.03
# A prediction error of more than this many times rounding is an error of the linear model.
_ABOVE_ROUNDING = 3.0


class Prediction(NamedTuple):
    """What the network linearized at one checkpoint says of another."""

    start: Float[np.ndarray, "n *o"]  # f_start
    linear: Float[np.ndarray, "n *o"]  # f_lin
    e1: float  # NaN where it is not resolved
    agreement: float  # NaN where there is nothing to decide


class Pairs:
    """Measures pairs of checkpoints of one run."""

    def __init__(self, model: ProbedFunction):
        self.model = model
        targets = None if model.labels is None else model.labels.targets
        shape = (model.settings.n_examples, *model.outputs_of_one)
        self.rule: Rule = decision_rule(shape, targets, model.settings.loss)

    def between(self, before: Sequence[Measured], now: Measured) -> dict[str, list[float]]:
        """All numbers of a checkpoint beside each one before it."""
        numbers: dict[str, list[float]] = {name: [] for name in _OF_PAIRS}
        unit, unit_centred = now.unit_kernels
        for earlier in before:
            before_unit, before_centred = earlier.unit_kernels
            there, back = self.prediction(earlier, now), self.prediction(now, earlier)
            numbers["distance"].append(_distance(before_unit, unit))
            numbers["distance_centred"].append(_distance(before_centred, unit_centred))
            numbers["overlap"].append(_overlap_of_modes(earlier.modes, now.modes))
            numbers["e1_to"].append(there.e1)
            numbers["e1_from"].append(back.e1)
            numbers["agreement_to"].append(there.agreement)
            numbers["agreement_from"].append(back.agreement)
        return numbers

    def prediction(self, start: Measured, end: Measured) -> Prediction:
        """What the network linearized at one checkpoint says of another."""
        found = self._predict(start.params, end.params, self.model.settings.x, end.kwargs)
        begun, linear = (np.asarray(outputs, np.float64) for outputs in found)
        error = float(np.linalg.norm(linear - end.outputs))
        change = float(np.linalg.norm(end.outputs - begun))
        # How far rounding alone may move the outputs.
        rounding = self.model.roundoff * float(np.linalg.norm(end.outputs))
        is_resolved = rounding < _RESOLVED * change or error > _ABOVE_ROUNDING * rounding
        e1 = error / change if change > 0 and is_resolved else math.nan
        agreed = agreement(linear, end.outputs, self.rule)
        return Prediction(begun, linear, e1, math.nan if agreed is None else float(agreed))

    def quadratic_error(
        self, start: Measured, end: Measured, begun: Float[np.ndarray, "n *o"]
    ) -> float:
        """e2; `begun` is f_start."""
        f = functools.partial(self.model.f, **end.kwargs)
        # XLA on CPU compiles some float32 reductions wrongly by default: these options are checked.
        expanded = in_full_precision(taylor_expand(f, start.params, 2))
        compiled = jax.jit(expanded, compiler_options=compiler_options(reduces=True))
        quadratic = np.asarray(compiled(end.params, self.model.settings.x), np.float64)
        return float(np.linalg.norm(quadratic - end.outputs) / np.linalg.norm(end.outputs - begun))

    @functools.cached_property
    def _predict(self) -> Callable[..., tuple[Array, Array]]:
        f = self.model.f

        def predict(
            start: PyTree, end: PyTree, x: PyTree, kwargs: Mapping[str, PyTree]
        ) -> tuple[Float[Array, "n *o"], Float[Array, "n *o"]]:
            way = jax.tree.map(jnp.subtract, end, start)  # theta_j - theta_i
            outputs, change = jax.jvp(lambda params: f(params, x, **kwargs), (start,), (way,))
            return outputs, outputs + change

        full = in_full_precision(predict)
        return jax.jit(full, compiler_options=compiler_options(reduces=True))


def _distance(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."]) -> float:
    """S of two kernels at unit length."""
    return 0.5 * float(np.sum((a - b) ** 2, dtype=np.float64))


def _overlap_of_modes(
    modes_a: Float[np.ndarray, "rows k"], modes_b: Float[np.ndarray, "rows k"]
) -> float:
    """||U_a^T U_b||_F^2 / m of the m leading modes that both resolve; NaN without modes."""
    # A mode below the noise floor has no direction.
    m = min(int(modes.any(axis=0).sum()) for modes in (modes_a, modes_b))
    if m == 0:
        return math.nan
    return float(np.sum((modes_a[:, :m].T @ modes_b[:, :m]) ** 2)) / m
