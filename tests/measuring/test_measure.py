"""One measurement of one set of parameters, whole for `compare` and short for `track`."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from internals import ProbedFunction, measure, read_settings

N, C = 8, 3
SIDE = types.SimpleNamespace(label="a", path=None, step=3, fixed_state="none")


def f(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def examples(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, 4)), rng.permutation(np.arange(N) % C)


@pytest.fixture(scope="module", autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def params():
    rng = np.random.default_rng(0)
    return {"w": jnp.asarray(rng.normal(size=(4, 5))), "v": jnp.asarray(rng.normal(size=(5, C)))}


def measured(params, reduction="auto", train=True, held_out=False, *, whole):
    """A measurement, with a margin where there are examples of the training set."""
    probes = examples(1) if train else None, examples(2) if held_out else None
    settings = read_settings(*probes, reduction, "mse", 0.1 if train else None, None)
    function = ProbedFunction.of(f, params, {}, settings, (C,))
    return measure(function, params, {}, SIDE, whole=whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduction", "train", "held_out"), [("auto", True, True), ("mean", False, True)]
)
def test_a_whole_measurement_is_the_short_one_and_more(params, reduction, train, held_out):
    whole = measured(params, reduction, train, held_out, whole=True)
    short = measured(params, reduction, train, held_out, whole=False)
    numbers, known = whole.numbers, short.numbers
    assert set(numbers) - set(known) == {"leave_one_out"}
    for name, value in known.items():
        assert numbers[name] == pytest.approx(value, rel=1e-9, nan_ok=True), name
    assert whole["leaf_shares"] == pytest.approx(short["leaf_shares"], rel=1e-9)
    assert short.leaf_kernels == {}


def test_the_kernel_is_that_of_the_oracle(params):
    short = measured(params, whole=False)
    np.testing.assert_allclose(
        short.kernel.array, reference.ntk(f, params, examples(1)[0]), rtol=1e-12
    )
    assert short["norm"] == pytest.approx(np.linalg.norm(short.kernel.matrix))
    assert (short.label, short.step) == ("a", 3)


def test_what_was_not_asked_for_is_no_number(params):
    settings = read_settings((examples(1)[0], None), None, "auto", None, None, None)
    without = measure(ProbedFunction.of(f, params, {}, settings, (C,)), params, {}, SIDE)
    assert not {"loss", "margin", "alignment"} & set(without.numbers)
    assert np.isnan(without["alignment"])
