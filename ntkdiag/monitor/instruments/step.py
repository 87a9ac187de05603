"""Numbers of the next step: norms, the learning rate, and how far it is from linear.

The update u changes the outputs on the probe by f(theta + u) - f(theta); to first order by J u.
What the first order misses is a share of the change:

    e1 = ||f(theta + u) - f(theta) - J u|| / ||f(theta + u) - f(theta)||

Its interval is the jackknife's for a ratio of sums over examples, on the logarithm, widened by the
rounding floor eps ||f|| / ||f(theta + u) - f(theta)||, eps of the coarsest dtype in the model. An
e1 below the floor is NaN, with the interval from 0 to the floor.
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.estimate import Estimate, student_t
from ntkdiag.jaxtools.precision import unit_roundoff
from ntkdiag.monitor.context import Context, Estimates, Instrument
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import sums_of_squares
from ntkdiag.optimizer.response import OptimizerStatus


class Norms(Instrument):
    """||gradient||, ||update|| and ||parameters||, by layer and in total, and the loss."""

    name: ClassVar[str] = "norms"

    def numbers(self, context: Context) -> Estimates:
        """Norms of what is at hand."""
        trees = {
            "gradient": context.gradient,
            "update": context.update,
            "parameter": context.params,
        }
        found: dict[str, Float[Array, ...]] = {"batch_loss": context.batch_loss}
        for name, tree in trees.items():
            if tree is None:
                continue
            squares = sums_of_squares(tree)
            found[f"layer_{name}"] = jnp.sqrt(squares)
            found[f"{name}_norm"] = jnp.sqrt(squares.sum())
        if "update_norm" in found:
            norm = found["parameter_norm"]
            ratio = found["update_norm"] / jnp.where(norm > 0.0, norm, 1.0)
            found["update_ratio"] = jnp.where(norm > 0.0, ratio, jnp.nan)
        if context.probe.has_loss:
            found["loss"] = context.loss_of(context.outputs)
        return {name: Estimate.exact(number) for name, number in found.items()}


class Optimizer(Instrument):
    """The learning rate, and whether the update is explained."""

    name: ClassVar[str] = "optimizer"

    def lack(self, probe: Probe) -> str | None:
        """No optimizer."""
        return "pass optimizer= and its state" if probe.optimizer is None else None

    def numbers(self, context: Context) -> Estimates:
        """What the trial step tells."""
        response = context.response
        status, rate, misfit = OptimizerStatus.REFUSED, jnp.nan, jnp.nan
        if response is not None:
            status, rate, misfit = response.status, response.learning_rate, response.misfit
        return {
            "learning_rate": Estimate.exact(rate),
            "optimizer_residual": Estimate.exact(misfit),
            "optimizer_status": Estimate.exact(jnp.asarray(status, jnp.float32)),
        }


class StepError(Instrument):
    """e1 of the next step on the probe: 0 for a linear model, about 1 for chaos."""

    name: ClassVar[str] = "step_error"

    def lack(self, probe: Probe) -> str | None:
        """No optimizer, or no gradient for it."""
        return "the optimizer is not known" if probe.optimizer is None else None

    def numbers(self, context: Context) -> Estimates:
        """e1 of the update."""
        if context.update is None:
            return {"step_error": Estimate.unknown()}
        outputs = context.outputs
        # The parameters after the update, in their own dtype as in training.
        moved = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), context.params, context.update)
        change = context.evaluate(moved, context.x) - outputs
        missed = change - context.push(context.update)
        squared_changes = _of_examples(change)
        changed = jnp.sqrt(squared_changes.sum())
        scale = jnp.sqrt(_of_examples(outputs).sum())
        roundoff = unit_roundoff(jax.make_jaxpr(context.f)(context.params, context.x))
        floor = jnp.where(changed > 0, roundoff * scale / changed, jnp.inf)
        ratio = _positive_ratio(_of_examples(missed), squared_changes)
        error, lower, upper = (jnp.sqrt(number) for number in ratio)
        # Written so that NaN, of 0 / 0, is not resolved; outputs that are not finite stay NaN.
        is_resolved = error > floor
        unresolved = jnp.where(jnp.isfinite(changed), floor, jnp.nan)
        estimate = Estimate.between(
            jnp.where(is_resolved, error, jnp.nan),
            jnp.where(is_resolved, jnp.maximum(lower - floor, 0.0), 0.0),
            jnp.where(is_resolved, upper + floor, unresolved),
        )
        return {"step_error": estimate}


def _of_examples(outputs: Float[Array, "n *o"]) -> Float[Array, " n"]:
    return jnp.square(outputs.reshape(outputs.shape[0], -1)).sum(axis=1)


def _positive_ratio(
    numerators: Float[Array, " n"], denominators: Float[Array, " n"]
) -> tuple[Array, Array, Array]:
    """The ratio of two sums over examples, both positive, and the ends of its interval."""
    n = len(numerators)
    ratio = numerators.sum() / denominators.sum()
    if n < 2:
        return ratio, jnp.full_like(ratio, jnp.nan), jnp.full_like(ratio, jnp.nan)
    without = (numerators.sum() - numerators) / (denominators.sum() - denominators)
    # Of what is 0 in all examples the ratio is 0, and has no scatter.
    relative = jnp.where(ratio == 0, 1.0, without / jnp.where(ratio == 0, 1.0, ratio))
    logarithms = jnp.log(jnp.maximum(relative, jnp.finfo(ratio.dtype).tiny))
    # The scatter without one example is 1 / (n - 1) of that of single examples.
    reach = student_t(n - 1) * (n - 1) * logarithms.std(ddof=1) / math.sqrt(n)
    return ratio, ratio * jnp.exp(-reach), ratio * jnp.exp(reach)
