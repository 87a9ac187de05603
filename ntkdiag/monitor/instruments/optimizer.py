"""What is known of the optimizer at a point."""

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.context import Context
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Rows
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import Products
from ntkdiag.optimizer.response import OptimizerStatus


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
