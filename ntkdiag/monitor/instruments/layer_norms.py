"""Norms layer by layer: of the gradient, of the update, and of the parameters; and the loss."""

import dataclasses
from typing import ClassVar

from jaxtyping import PyTree

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument
from ntkdiag.monitor.instruments.norms_of_step import norms_of_step
from ntkdiag.monitor.instruments.traced_program import trained_layers
from ntkdiag.monitor.step_context import StepContext


@dataclasses.dataclass(frozen=True)
class LayerNorms(Instrument):
    """||gradient||, ||update|| and ||parameter|| of every layer and in all, and what an update is.

    A layer is a leaf of the parameters, or a slice of one that f scans over: see `Layers`, which
    also has their names. The gradient and the update are those of training, and each is left out
    where it is not at hand.

    Gives `layer_gradient`, `layer_update` and `layer_parameter`, `[L]` each, `gradient_norm`,
    `update_norm` and `parameter_norm`, and ||update|| / ||parameter||, NaN of parameters that are
    zero: `layer_update_ratio` `[L]` and `update_ratio`; and `loss`, of the probe, where one was
    named. All are exact.

    Cost: none.
    """

    name: ClassVar[str] = "layer_norms"

    def measure(self, context: StepContext, memory: PyTree) -> tuple[Estimates, PyTree]:
        """The loss, and norms of what is at hand."""
        layers = context.once(trained_layers)
        numbers = norms_of_step(layers, context.params, context.gradient, context.update)
        if context.loss is not None:
            numbers["loss"] = Estimate.exact(context.loss_of(context.outputs))
        return numbers, memory
