"""`track(..., gradient_kernel=True)`: numbers of single examples through training, kept and summed."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ntkdiag
from ntkdiag.errors import InvalidInputError

RNG = np.random.default_rng(0)
N, WRONG = 120, 12
X = RNG.normal(size=(N, 6)).astype(np.float32)
CLEAN = (X[:, 0] + 0.3 * X[:, 1] > 0).astype(int)
Y = np.where(np.arange(N) < WRONG, 1 - CLEAN, CLEAN)  # the first twelve labels are flipped


def f(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def trained():
    """Steps -> parameters."""
    params = {"a": RNG.normal(size=(6, 16)) / 6**0.5, "b": RNG.normal(size=(16, 2)) / 4}
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(f(p, X), Y).mean()
    gradient = jax.jit(jax.grad(loss))
    run = {}
    for step in range(41):
        if step in (0, 10, 40):
            run[step] = params
        params = jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient(params))
    return run


RUN = {"model": f, "train": (X, Y), "loss": "cross_entropy"}


@pytest.fixture(scope="module")
def checkpoints():
    return trained()


@pytest.mark.slow
def test_numbers_are_those_of_each_checkpoint(checkpoints, tmp_path):
    run = ntkdiag.track(checkpoints, **RUN, gradient_kernel=True, out=tmp_path / "run")
    for place, params in enumerate(checkpoints.values()):
        G = ntkdiag.gradient_kernel(f, params, X, Y, loss="cross_entropy")
        noise = ntkdiag.analysis.noise_scale(G)
        for name, number in [("noise_scale", noise.value), ("noise_scale_lower", noise.lower)]:
            known = number if np.isfinite(number) else np.nan  # JSON has no infinity
            np.testing.assert_allclose(run.series(name)[place], known, rtol=1e-3)
        own = ntkdiag.analysis.self_influence(G)
        np.testing.assert_allclose(run.series("self_influence")[place], own, rtol=1e-4, atol=1e-8)
    # A tenth of the labels is flipped: of the twelve that train themselves most, most are.
    first = np.argsort(-run.series("self_influence").sum(axis=0))[:WRONG]
    assert np.sum(first < WRONG) >= 8

    # What is stored reads back, and has axes.
    again = ntkdiag.open_run(tmp_path / "run").tracked
    np.testing.assert_allclose(again.series("self_influence"), run.series("self_influence"))
    assert run.dataset["self_influence"].dims == ("step", "example")
    # A run that goes on without it is another one.
    with pytest.raises(InvalidInputError, match="gradient_kernel"):
        ntkdiag.track(checkpoints, **RUN, out=tmp_path / "run")
