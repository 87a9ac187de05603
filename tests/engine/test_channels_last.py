"""Convolutions are brought to one layout, also inside of loops."""

import jax
import jax.numpy as jnp
from draws import normal
from jax import lax

import ntkdiag
from ntkdiag.jaxtools import jaxprs


def convolutions(jaxpr):
    """Dimension numbers of all convolutions."""
    for eqn in jaxprs.open_jaxpr(jaxpr)[0].eqns:
        if eqn.primitive.name == "conv_general_dilated":
            yield eqn.params["dimension_numbers"]
        for sub in jaxprs.sub_jaxprs(eqn):
            yield from convolutions(sub)


def scanned(params, x):
    """A network whose convolutions are in a scan, channels-first."""

    def body(h, w):
        numbers = ("NCHW", "OIHW", "NCHW")
        y = lax.conv_general_dilated(h, w, (1, 1), "SAME", dimension_numbers=numbers)
        return h + jnp.tanh(y), None

    return lax.scan(jax.checkpoint(body), x, params["w"])[0].mean((2, 3)) @ params["v"]


def test_what_runs_in_loops():
    params, x = {"w": normal(3, 4, 4, 3, 3), "v": normal(4, 2)}, normal(3, 4, 6, 5)
    kernel = lambda params, x: ntkdiag.ntk(scanned, params, x, reduction="full").array
    found = list(convolutions(jax.make_jaxpr(kernel)(params, x)))
    assert found
    assert {numbers.lhs_spec for numbers in found} == {(0, 3, 1, 2)}
    assert {numbers.out_spec for numbers in found} == {(0, 3, 1, 2)}
