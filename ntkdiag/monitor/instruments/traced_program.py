"""The program of the trained function, traced once for all instruments that read it."""

import jax

from ntkdiag._jax import ClosedJaxpr
from ntkdiag.engine.jacobian.liveness import unit_roundoff
from ntkdiag.monitor.instruments.layers import Layers, layers_in
from ntkdiag.monitor.step_context import StepContext


def program_of(context: StepContext) -> ClosedJaxpr:
    """The jaxpr of f on the probe; its first inputs are the leaves of the parameters."""
    return jax.make_jaxpr(context.f)(context.params, context.x)


def trained_layers(context: StepContext) -> Layers:
    """The layers of the parameters."""
    return layers_in(context.once(program_of), context.params)


def roundoff_of(context: StepContext) -> float:
    """The unit roundoff of the coarsest dtype that f computes in."""
    return unit_roundoff(context.once(program_of))
