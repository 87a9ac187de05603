"""The self-check says what is wrong with a model, and is quiet about models that are right."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import models_contract
import numpy as np
import pytest
from models_contract import fixed_key

import ntkdiag
from ntkdiag import selfcheck

X = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
WEIGHT = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)


def statuses(check):
    return {finding.question: finding.status for finding in check.findings}


@pytest.mark.smoke
def test_a_model_that_is_right():
    check = selfcheck(*models_contract.linen(jnp.float32), X)
    assert check.ok
    assert set(statuses(check).values()) == {"ok"}
    assert (check.model, check.mode) == ("linen Linen", "eval")
    assert [(leaf.path, leaf.shape, leaf.bytes) for leaf in check.trainable][2:4] == [
        ("Dense_0/bias", (4,), 16),
        ("Dense_0/kernel", (3, 4), 48),
    ]
    assert [leaf.path for leaf in check.fixed] == [
        "batch_stats/BatchNorm_0/mean",
        "batch_stats/BatchNorm_0/var",
    ]
    assert "linen Linen, mode eval: nothing is wrong  (" in str(check)
    with pytest.raises(KeyError, match=r"'speed': there are '.*'engine'"):
        check["speed"]


@pytest.mark.slow
def test_every_library_in_train_mode():
    module, state = models_contract.equinox(jnp.float32)
    for arguments, options in [
        (models_contract.nnx_model(jnp.float32), {}),
        ((module,), {"state": state, "key": fixed_key()}),
        (models_contract.linen(jnp.float32), {"rngs": fixed_key()}),
    ]:
        check = selfcheck(*arguments, X, mode="train", examples="joint", **options)
        assert check.ok, str(check)
        assert check["examples"].text.startswith("they interact, as examples=")
        wrong = selfcheck(*arguments, X, mode="train", **options)
        assert not wrong.ok
        assert 'or pass examples="joint" if you mean it' in wrong["examples"].text
        assert statuses(wrong)["engine"] == "not checked"


@pytest.mark.slow
def test_statistics_that_a_batch_has_filled_in():
    # An untrained state divides by almost nothing: a kernel that is finite, and far too large.
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="ema")
    untrained = selfcheck(norm, X, state=state)
    assert not untrained.ok
    assert untrained["statistics"].status == "wrong"
    step = jax.vmap(norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    _, trained = step(X, state)
    check = selfcheck(norm, X, state=trained)
    assert check.ok
    assert "statistics" not in [finding.question for finding in check.findings]


def drawing(rng):
    return lambda p, x: x @ p * rng.normal()


def batch_mean(p, x):
    return (x - x.mean(axis=0)) @ p


def constant(p, x):
    return jnp.ones((len(x), 1)) * p


def of_a(p, x):
    return x["a"] @ p


def of_w(p, x):
    return x @ p["w"]


def test_what_can_be_wrong():
    for f, params, x, question, status, text in [
        (batch_mean, WEIGHT, X, "examples", "wrong", "they interact"),
        (
            drawing(np.random.default_rng(0)),
            WEIGHT,
            X,
            "deterministic",
            "wrong",
            "two calls differ",
        ),
        (constant, WEIGHT[0, :1], X, "inputs", "wrong", "the outputs do not depend on x"),
        (of_a, WEIGHT, {"a": X, "b": X}, "inputs", "note", '"b" does not reach the outputs'),
        (of_w, {"w": WEIGHT, "dead": WEIGHT}, X, "gradients", "note", "no gradient of dead"),
        (lambda p, x: x[:, :2] + 0 * p, WEIGHT[0], X, "gradients", "wrong", "no parameter has"),
        (lambda p, x: jnp.sqrt(x @ (p * 0)), WEIGHT, X, "gradients", "wrong", "NaN or infinity"),
        (lambda p, x: jnp.log(x @ p * 0), WEIGHT, X, "runs", "wrong", "hold NaN or infinity"),
        (lambda p, x: (x @ p).sum(), WEIGHT, X, "runs", "wrong", "the first axis has to be"),
        (lambda p, x: jnp.argmax(x @ p, -1), WEIGHT, X, "runs", "wrong", "outputs int32[4]"),
        (lambda p, x: x @ p.T, WEIGHT, X, "runs", "wrong", "TypeError: dot_general requires"),
        (lambda p, x: x @ p, WEIGHT, X[:1], "examples", "not checked", "one example only"),
    ]:
        check = selfcheck(f, params, x)
        assert check[question].status == status, str(check)
        assert text in check[question].text
        assert check.ok == (status != "wrong")
        assert ("something" in str(check)) == (status == "wrong")


@pytest.mark.slow
def test_what_depends_on_tracing(x64):
    calls = itertools.count(1)
    wide = jnp.asarray(WEIGHT, jnp.float64)
    check = selfcheck(lambda p, x: x @ p * next(calls), wide, jnp.asarray(X, jnp.float64))
    assert check["deterministic"].text.startswith("two calls differ by ")
    assert check["deterministic"].text.endswith("outside of JAX's keys, or is read while tracing")
    assert statuses(check)["the rest"] == "not checked"


def test_an_engine_that_is_wrong_is_found(monkeypatch):
    from ntkdiag.checking import plain_jacobian

    monkeypatch.setattr(
        plain_jacobian,
        "ntk",
        lambda f, *args, **kwargs: ntkdiag.ntk(lambda p, x: 1.01 * f(p, x), *args, **kwargs),
    )
    check = selfcheck(lambda p, x: x @ p, WEIGHT, X)
    end = ": relative error 0.02 compared with plain jax.vjp, more than 0.0003: please report it"
    assert check["engine"].text.endswith(end)
    assert not check.ok


def test_keywords_are_handed_on_and_batches_are_required():
    assert selfcheck(
        lambda p, x, scale: x @ p * scale, WEIGHT, X, call_kwargs={"scale": jnp.ones(2)}
    ).ok
    for arguments, got in (
        ((), "the model alone"),
        ((WEIGHT, (X, X[:2])), "2 arguments after the model, the last with (5, 3), (2, 3)"),
    ):
        with pytest.raises(ntkdiag.errors.InvalidInputError) as caught:
            selfcheck(lambda p, x: x @ p, *arguments)
        assert f"got {got}. Pass selfcheck(model, x)" in str(caught.value)


def root_of_sum(params, x):
    return jnp.sqrt(jnp.square(x @ params["w"]).sum(1, keepdims=True))


def test_a_gradient_that_is_nan_at_a_later_example():
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    x[[3, 20, 39]] = 0
    assert np.isfinite(root_of_sum({"w": WEIGHT}, x)).all()
    check = selfcheck(root_of_sum, {"w": WEIGHT}, x)
    assert check["gradients"].status == "wrong"
    assert "in the gradient of w at examples 3, 20, 39 of 40" in check["gradients"].text
    assert not check.ok
