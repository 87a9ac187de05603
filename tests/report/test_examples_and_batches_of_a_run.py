"""What a report says about examples and batches: those to look at first, wrong labels, batches far from the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import load_digits

import ntkdiag

N, WRONG = 80, np.arange(5, 13)


def f(params, x):
    return jnp.tanh(x.reshape(len(x), -1) @ params["a"]) @ params["b"]


def tracked(folder):
    """A run on digits of which some have the label of the next class."""
    data = load_digits(0)
    x, y = data.x_train[:N].astype(np.float32), data.y_train[:N].copy()
    y[WRONG] = (y[WRONG] + 1) % 10
    keys = jax.random.split(jax.random.key(0))
    params = {
        "a": jax.random.normal(keys[0], (64, 32)) / 8,
        "b": jax.random.normal(keys[1], (32, 10)) / 32**0.5,
    }
    gradient = jax.jit(
        jax.grad(lambda p: optax.softmax_cross_entropy_with_integer_labels(f(p, x), y).mean())
    )
    checkpoints = {}
    for step in range(61):
        if step in (20, 40, 60):
            checkpoints[step] = params
        params = jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient(params))
    options = {"loss": "cross_entropy", "gradient_kernel": True, "out": folder}
    ntkdiag.track(checkpoints, model=f, train=(x, y), **options)
    return ntkdiag.open_run(folder)


@pytest.mark.slow
def test_wrong_labels_are_found(tmp_path):
    run = tracked(tmp_path / "run")
    [finding] = [one for one in run.findings if one.id == "suspicious-labels"]
    assert finding.value > finding.threshold == 0.5
    named = finding.sentence.partition("(examples ")[2].partition(")")[0].split(", ")
    right = {int(name) for name in named} & set(WRONG.tolist())
    assert len(right) >= max(4, 0.7 * len(named))  # of 72 right labels some are odd, too
    assert f"{len(named)} of 80 labels look wrong" in finding.sentence
