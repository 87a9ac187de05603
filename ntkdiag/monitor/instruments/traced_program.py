"""The program of the trained function, traced once for all instruments that read it."""

import jax

from ntkdiag._jax import ClosedJaxpr
from ntkdiag.engine.jacobian.liveness import unit_roundoff
from ntkdiag.monitor.instruments.layers import Layers, layers_in
from ntkdiag.monitor.step_context import Situation


def program_of(situation: Situation) -> ClosedJaxpr:
    """The jaxpr of f on the probe; its first inputs are the leaves of the parameters."""
    return jax.make_jaxpr(situation.f)(situation.params, situation.x)


def trained_layers(situation: Situation) -> Layers:
    """The layers of the parameters."""
    return layers_in(situation.once(program_of), situation.params)


def roundoff_of(situation: Situation) -> float:
    """The unit roundoff of the coarsest dtype that f computes in."""
    return unit_roundoff(situation.once(program_of))
