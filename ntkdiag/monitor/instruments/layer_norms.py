"""Norms layer by layer: of the gradient, of the update, and of the parameters."""

import dataclasses
from typing import ClassVar

from jaxtyping import PyTree

from ntkdiag.monitor.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument
from ntkdiag.monitor.instruments.traced_program import trained_layers
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.situation import Situation


@dataclasses.dataclass(frozen=True)
class LayerNorms(Instrument):
    """||gradient||, ||update|| and ||parameter|| of every layer.

    A layer is a leaf of the parameters, or a slice of one that f scans over: see `Layers`, which
    also has their names. The gradient and the update are those of training, and each is left out
    where it is not at hand.

    Gives `layer_gradient`, `layer_update` and `layer_parameter`, `[L]` each, exact.

    Cost: none.
    """

    name: ClassVar[str] = "layer_norms"

    def forwards(self, layout: ProbeLayout) -> float:
        """No passes."""
        return 0.0

    def measure(self, situation: Situation, memory: PyTree) -> tuple[Estimates, PyTree]:
        """Norms of what is at hand."""
        layers = situation.once(trained_layers)
        trees = {
            "layer_gradient": situation.gradient,
            "layer_update": situation.update,
            "layer_parameter": situation.params,
        }
        estimates = {}
        for name, tree in trees.items():
            if tree is not None:
                estimates[name] = Estimate.exact(layers.norms(tree))
        return estimates, memory
