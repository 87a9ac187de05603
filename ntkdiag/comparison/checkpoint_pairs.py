"""What lies between two checkpoints of a run: their kernels, and how far one predicts the other.

With K_i the kernel, U_i its leading modes, f_i the outputs and theta_i the parameters of checkpoint
i, and s_i what the model holds beside them, such as running statistics:

    distance            S   = 1 - <K_i, K_j> / (||K_i|| ||K_j||), and S_c, centred over examples
    overlap             ||U_i^T U_j||_F^2 / m, of the m <= 10 leading modes that both resolve
    e1[i -> j]          ||f_j - f_lin|| / ||f_j - f_start||, the network linearized at i:
                        f_start = f(theta_i, s_j),  f_lin = f_start + J (theta_j - theta_i)
    agreement[i -> j]   share of the decisions of f_j that f_lin takes, too

The last two are one `jax.jvp` each, compiled once. Statistics are those of j throughout, so that
what they did by themselves is no error of the prediction.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag._jax import compiler_options
from ntkdiag.analysis import drift
from ntkdiag.comparison.checkpoint_numbers import N_MODES, CheckpointNumbers, TrackedModel
from ntkdiag.comparison.decisions import Rule, agreement, decision_rule
from ntkdiag.comparison.linearized_change import resolved_error


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """One checkpoint: where it is, and what was measured there.

    Attributes:
        step: Its step.
        params: theta.
        kwargs: What else the function takes: s.
        numbers: Kernel, modes and outputs.
    """

    step: int
    params: PyTree
    kwargs: Mapping[str, PyTree]
    numbers: CheckpointNumbers


# Of a pair (earlier, now): names of the numbers that are the same in both directions, and of those
# that have one.
SYMMETRIC = ("distance", "distance_centred", "overlap")
DIRECTED = ("e1", "agreement")


class Pairs:
    """Measures pairs of checkpoints of one run."""

    def __init__(self, model: TrackedModel):
        self.model = model
        targets = None if model.labels is None else model.labels.targets
        shape = (model.settings.n_examples, *model.outputs_of_one)
        self.rule: Rule = decision_rule(shape, targets, model.settings.loss)

    def between(self, earlier: Place, now: Place) -> dict[str, float]:
        """All numbers of a pair; "e1_to" is from the earlier one to now, "e1_from" the other way.

        Cost: two forward derivatives of the probe, 6 F n, and products of kernels, (N C)^2.
        """
        a, b = earlier.numbers, now.numbers
        moved = drift(a.kernel, b.kernel)
        numbers = {
            "distance": float(moved.distance),
            "distance_centred": float(moved.distance_centred),
            "overlap": _overlap(a, b),
        }
        for way, start, end in (("to", earlier, now), ("from", now, earlier)):
            e1, agreeing = self._linearized(start, end)
            numbers |= {f"e1_{way}": e1, f"agreement_{way}": agreeing}
        return numbers

    def _linearized(self, start: Place, end: Place) -> tuple[float, float]:
        """e1 from one to another, and the decisions that agree; NaN where unresolved."""
        begun, predicted = self._predict(start.params, end.params, self.model.x, end.kwargs)
        begun, predicted = np.asarray(begun, np.float64), np.asarray(predicted, np.float64)
        reached = end.numbers.outputs
        error = float(np.linalg.norm(predicted - reached))
        change = float(np.linalg.norm(reached - begun))
        rounding = self.model.roundoff * float(np.linalg.norm(reached))
        e1 = resolved_error(error, change, rounding)
        agreeing = agreement(predicted, reached, self.rule)
        return math.nan if e1 is None else e1, math.nan if agreeing is None else agreeing

    @functools.cached_property
    def _predict(self) -> Callable[..., tuple[Array, Array]]:
        f = self.model.f

        def predict(
            start: PyTree, end: PyTree, x: PyTree, kwargs: Mapping[str, PyTree]
        ) -> tuple[Float[Array, "n *o"], Float[Array, "n *o"]]:
            way = jax.tree.map(lambda theta_i, theta_j: theta_j - theta_i, start, end)
            outputs, change = jax.jvp(lambda params: f(params, x, **kwargs), (start,), (way,))
            return outputs, outputs + change

        return jax.jit(predict, compiler_options=compiler_options(reduces=True))


def _overlap(a: CheckpointNumbers, b: CheckpointNumbers) -> float:
    """How much of the leading subspace of one kernel is that of the other; NaN without modes."""
    # Modes below the noise floor have no direction.
    m = min(N_MODES, a.row["rank"], b.row["rank"])
    if m == 0:
        return math.nan
    return float(np.sum((a.modes[:, :m].T @ b.modes[:, :m]) ** 2)) / m
