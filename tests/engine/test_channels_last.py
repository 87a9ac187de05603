"""Convolutions are brought to one layout, also inside of loops and branches, and compute what they did."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import channels_last
from jax import lax

import ntkdiag
from ntkdiag.jaxtools import jaxprs

pytestmark = pytest.mark.usefixtures("x64")


def normal(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape))


def conv(x, w, numbers, **options):
    return lax.conv_general_dilated(x, w, dimension_numbers=numbers, padding="SAME", **options)


PLAIN = {
    "channels-first": (("NCHW", "OIHW", "NCHW"), (2, 4, 6, 5), (4, 4, 3, 3), {}),
    "mixed": (("CNWH", "WIHO", "HCNW"), (4, 2, 5, 6), (3, 4, 2, 4), {}),
    "depthwise": (("NCHW", "HWOI", "NCHW"), (2, 4, 6, 5), (3, 2, 8, 1), {"feature_group_count": 4}),
    "batch groups": (
        ("NHWC", "HWIO", "NHWC"),
        (4, 6, 5, 3),
        (3, 3, 3, 4),
        {"batch_group_count": 2},
    ),
    "strides and dilation": (
        ("NHWC", "HWIO", "NCHW"),
        (2, 7, 9, 3),
        (3, 2, 3, 4),
        {"window_strides": (2, 1), "rhs_dilation": (1, 2)},
    ),
    "one dimension": (("NCW", "OIW", "NWC"), (2, 3, 7), (4, 3, 3), {}),
}


def twice_in_a_scan(x, w):
    body = jax.checkpoint(
        lambda h, w: (
            jnp.tanh(conv(h, w, ("NCHW", "OIHW", "NCHW"), window_strides=(1, 1))),
            h.sum(),
        )
    )
    return lax.scan(body, x, jnp.stack([w, 2 * w]))


def in_a_branch(x, w):
    branch = lambda numbers: lambda x, w: conv(x, w, numbers, window_strides=(1, 1))
    return lax.switch(
        (x.sum() > 0).astype(int),
        [branch(("NCHW", "OIHW", "NCHW")), branch(("NCHW", "IOHW", "NCHW"))],
        x,
        w,
    )


def convolutions(jaxpr):
    """Dimension numbers of all convolutions, with their rank."""
    for eqn in jaxprs.open_jaxpr(jaxpr)[0].eqns:
        if eqn.primitive.name == "conv_general_dilated":
            yield eqn.params["dimension_numbers"], eqn.invars[0].aval.ndim
        for sub in jaxprs.sub_jaxprs(eqn):
            yield from convolutions(sub)


def check(f, *args):
    before, after = (jax.make_jaxpr(g)(*args) for g in (f, channels_last(f)))
    for numbers, ndim in convolutions(after):
        last = ndim - 1
        assert numbers.lhs_spec == numbers.out_spec == (0, last, *range(1, last))
        assert numbers.rhs_spec == (last, last - 1, *range(last - 1))
    assert len(list(convolutions(after))) == len(list(convolutions(before))) > 0
    got, wanted = channels_last(f)(*args), f(*args)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-12)


def derivatives(f):
    """f, its gradients, and those of several cotangents at once, where convolutions get batch and feature groups."""

    def everything(x, w):
        y, pull = jax.vjp(f, x, w)
        cotangents = jax.tree.map(lambda v: jnp.stack([jnp.ones_like(v), v]), y)
        return y, jax.vmap(pull)(cotangents)

    return everything


@pytest.mark.parametrize(
    "name",
    ["mixed", *(pytest.param(name, marks=pytest.mark.slow) for name in PLAIN if name != "mixed")],
)
def test_every_layout(name):
    numbers, x, w, options = PLAIN[name]
    options = {"window_strides": (1,) * (len(x) - 2), **options}
    check(derivatives(functools.partial(conv, numbers=numbers, **options)), normal(*x), normal(*w))


@pytest.mark.slow
@pytest.mark.parametrize("f", [twice_in_a_scan, in_a_branch])
def test_derivatives_inside_control_flow(f):
    check(derivatives(f), normal(2, 4, 6, 5), normal(4, 4, 3, 3))


def scanned(params, x):
    """A network whose convolutions are in a scan, channels-first."""
    body = lambda h, w: (
        h + jnp.tanh(conv(h, w, ("NCHW", "OIHW", "NCHW"), window_strides=(1, 1))),
        None,
    )
    return lax.scan(jax.checkpoint(body), x, params["w"])[0].mean((2, 3)) @ params["v"]


def test_what_runs_in_loops():
    params, x = {"w": normal(3, 4, 4, 3, 3), "v": normal(4, 2)}, normal(3, 4, 6, 5)
    kernel = lambda params, x: ntkdiag.ntk(scanned, params, x, reduction="full").array
    found = list(convolutions(jax.make_jaxpr(kernel)(params, x)))
    assert found
    assert (
        {numbers.lhs_spec for numbers, _ in found}
        == {numbers.out_spec for numbers, _ in found}
        == {(0, 3, 1, 2)}
    )
