"""Numbers of the next step: norms, the learning rate, and how far it is from linear.

The update u changes the outputs on the probe by f(theta + u) - f(theta); to first order by J u.
What the first order misses is a share of the change:

    e1 = ||f(theta + u) - f(theta) - J u|| / ||f(theta + u) - f(theta)||
"""

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag.estimate import Estimate, student_t
from ntkdiag.jaxtools.precision import unit_roundoff
from ntkdiag.monitor.context import Context, Estimates, Instrument, Rows
from ntkdiag.monitor.instruments.layers import Layers
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import Products
from ntkdiag.optimizer.response import OptimizerStatus


class Norms(Instrument):
    """||gradient||, ||update|| and ||parameters||, and how the gradient lies to that of the loss.

    A layer is a leaf of the parameters, or a slice of one that f scans over. The update is the one
    that the optimizer would make next with the gradient at hand.

    Gives `layer_gradient`, `layer_update` and `layer_parameter`, `[L]` each, `gradient_norm`,
    `update_norm` and `parameter_norm`; ||update|| / ||parameters||, NaN of zero parameters:
    `layer_update_ratio` `[L]` and `update_ratio`; the `loss` of the probe, where one was named, and
    `batch_loss`, what was handed to the optimizer as `value=`; 1 for layers with NaN or infinity,
    `layer_gradient_not_finite` and `layer_parameter_not_finite`, `[L]` each.
    """

    name: ClassVar[str] = "norms"

    def read(
        self, context: Context, products: Sequence[Products], rows: Rows
    ) -> tuple[Estimates, Rows]:
        """Norms of what is at hand."""
        layers, gradient = context.layers, context.gradient
        numbers = norms(layers, context.params, gradient, context.update)
        for name in ("layer_parameter", "layer_gradient"):
            if name in numbers:
                is_broken = ~jnp.isfinite(numbers[name].value)
                numbers[f"{name}_not_finite"] = Estimate.exact(is_broken.astype(jnp.float32))
        numbers["batch_loss"] = Estimate.exact(context.batch_loss)
        if context.probe.has_loss:
            numbers["loss"] = Estimate.exact(context.loss_of(context.outputs))
        return numbers, rows


def norms(layers: Layers, params: PyTree, gradient: PyTree, update: PyTree) -> Estimates:
    """Norms by layer and in all, exact; None for a tree that is not at hand."""
    found: dict[str, Float[Array, ...]] = {}
    for name, tree in {"gradient": gradient, "update": update, "parameter": params}.items():
        if tree is not None:
            squares = layers.sums_of_squares(tree)
            found[f"layer_{name}"] = jnp.sqrt(squares)
            found[f"{name}_norm"] = jnp.sqrt(squares.sum())
    if params is not None and update is not None:
        found["layer_update_ratio"] = _ratio(found["layer_update"], found["layer_parameter"])
        found["update_ratio"] = _ratio(found["update_norm"], found["parameter_norm"])
    return {name: Estimate.exact(norm) for name, norm in found.items()}


def _ratio(updates: Float[Array, "*L"], params: Float[Array, "*L"]) -> Float[Array, "*L"]:
    """One norm over the other; NaN where parameters are zero, as a bias is at first."""
    return jnp.where(params > 0.0, updates / jnp.where(params > 0.0, params, 1.0), jnp.nan)


class Optimizer(Instrument):
    """The learning rate, and whether the update is explained.

    - `learning_rate`: that of the optimizer at this step; NaN where arrays have several.
    - `optimizer_status`: an `OptimizerStatus`: whether there is a margin.
    - `optimizer_residual`: how far the update is from the linear picture of it, relative.
    - `optimizer_array`: the index of the array that is explained worst, -1 where all are.
    """

    name: ClassVar[str] = "optimizer"

    def lack(self, probe: Probe) -> str | None:
        """No optimizer."""
        return "pass optimizer= and its state" if probe.optimizer is None else None

    def read(
        self, context: Context, products: Sequence[Products], rows: Rows
    ) -> tuple[Estimates, Rows]:
        """What the trial step tells."""
        response = context.response
        if response is None:
            unknown = {name: Estimate.unknown() for name in ("learning_rate", "optimizer_residual")}
            status, worst = jnp.asarray(float(OptimizerStatus.REFUSED)), jnp.asarray(-1.0)
        else:
            unknown = {
                "learning_rate": Estimate.exact(response.learning_rate),
                "optimizer_residual": Estimate.exact(response.misfit),
            }
            status, worst = response.status, response.worst
        return unknown | {
            "optimizer_status": Estimate.exact(status.astype(jnp.float32)),
            "optimizer_array": Estimate.exact(worst.astype(jnp.float32)),
        }, rows


class StepError(Instrument):
    """e1 of the next step on the probe: 0 for a linear model, about 1 for chaos.

    The step is the one that the optimizer would make with the gradient at hand. The interval is the
    jackknife's for a ratio of sums over examples, on the logarithm, and holds e1 on all examples
    like those of the probe. It is widened by the rounding floor,

        eps ||f|| / ||f(theta + u) - f(theta)||,

    eps of the coarsest dtype that the model computes in. An e1 below the floor is unresolved: NaN,
    with the interval from 0 to the floor. Where nothing changed the floor is infinite.

    Gives `step_error`. Cost: a forward pass and a forward derivative, 3 F n.
    """

    name: ClassVar[str] = "step_error"

    def lack(self, probe: Probe) -> str | None:
        """No optimizer, or no gradient for it."""
        return "the optimizer is not known" if probe.optimizer is None else None

    def read(
        self, context: Context, products: Sequence[Products], rows: Rows
    ) -> tuple[Estimates, Rows]:
        """e1 of the update."""
        if context.update is None:
            return {"step_error": Estimate.unknown()}, rows
        outputs = context.outputs
        change = context.evaluate(context.moved(), context.x) - outputs
        missed = change - context.push(context.update)
        squared_changes = _of_examples(change)
        changed = jnp.sqrt(squared_changes.sum())
        scale = jnp.sqrt(_of_examples(outputs).sum())
        roundoff = unit_roundoff(context.program)
        floor = jnp.where(changed > 0, roundoff * scale / changed, jnp.inf)
        squared = _positive_ratio(_of_examples(missed), squared_changes)
        error = jnp.sqrt(squared.value)
        # Written so that NaN, of 0 / 0, is not resolved; outputs that are not finite stay NaN.
        is_resolved = error > floor
        unresolved = jnp.where(jnp.isfinite(changed), floor, jnp.nan)
        estimate = Estimate.between(
            jnp.where(is_resolved, error, jnp.nan),
            jnp.where(is_resolved, jnp.maximum(jnp.sqrt(squared.lower) - floor, 0.0), 0.0),
            jnp.where(is_resolved, jnp.sqrt(squared.upper) + floor, unresolved),
        )
        return {"step_error": estimate}, rows


def _of_examples(outputs: Float[Array, "n *o"]) -> Float[Array, " n"]:
    """Squared norms of the outputs of each example."""
    return jnp.square(outputs.reshape(outputs.shape[0], -1)).sum(axis=1)


def _positive_ratio(numerators: Float[Array, "n *s"], denominators: Float[Array, " n"]) -> Estimate:
    """The ratio of two sums over independent samples, both positive, with its interval."""
    n = numerators.shape[0]
    below = denominators.reshape(n, *[1] * (numerators.ndim - 1))  # [n] -> [n *1]
    above_sum, below_sum = numerators.sum(axis=0), below.sum(axis=0)
    ratio = above_sum / below_sum

    without = (above_sum - numerators) / (below_sum - below)  # [n *s]
    # Of what is 0 in all samples the ratio is 0, and has no scatter.
    tiny = jnp.finfo(ratio.dtype).tiny
    relative = jnp.where(ratio == 0, 1.0, without / jnp.where(ratio == 0, 1.0, ratio))
    logarithms = jnp.log(jnp.maximum(relative, tiny))
    # The scatter without one sample is 1 / (n - 1) of that of single samples.
    reach = _reach((n - 1) * (logarithms - logarithms.mean(axis=0)))
    return Estimate(ratio, ratio * jnp.exp(-reach), ratio * jnp.exp(reach))


def _reach(deviations: Float[Array, "n *s"]) -> Float[Array, "*s"]:
    """t s / sqrt(n) of deviations from a mean; NaN for a single one."""
    n = deviations.shape[0]
    if n < 2:
        return jnp.full(deviations.shape[1:], jnp.nan, deviations.dtype)
    variance = jnp.square(deviations).sum(axis=0) / (n - 1)
    return student_t(n - 1) * jnp.sqrt(variance / n)
