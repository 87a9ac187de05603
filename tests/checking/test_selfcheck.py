"""The self-check says what is wrong with a model, and is quiet about models that are right."""

import dataclasses
import itertools
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import models_contract
import numpy as np
import pytest
from flax import linen as nn
from internals import main
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
@pytest.mark.parametrize("mode", ["dropout", "train"])
def test_every_library_in_every_mode(mode):
    module, state = models_contract.equinox(jnp.float32)
    cases = (
        ((*models_contract.nnx_model(jnp.float32), X), {}),
        ((module, X), {"state": state, "key": fixed_key()}),
    )
    cases += (((*models_contract.linen(jnp.float32), X), {"rngs": fixed_key()}),)
    for arguments, options in cases:
        check = selfcheck(
            *arguments, mode=mode, examples="joint" if mode == "train" else "independent", **options
        )
        assert check.ok, str(check)
        assert "engine" in statuses(check)
        if mode == "train":
            assert check["examples"].text.startswith(
                "they interact, as said: one example changes the outputs"
            )
            wrong = selfcheck(*arguments, mode=mode, **options)
            assert not wrong.ok
            assert wrong["examples"].text.endswith(
                'Use mode="eval" or mode="dropout", or examples="joint" if that is meant.'
            )
            assert statuses(wrong)["engine"] == "not checked"


@pytest.mark.slow
def test_statistics_that_a_batch_has_filled_in():
    # An untrained state divides by almost nothing: a kernel that is finite, and far too large.
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="ema")
    untrained = selfcheck(norm, X, state=state)
    assert not untrained.ok
    assert untrained["statistics"].status == "wrong"
    assert selfcheck(norm, X, state=state, mode="train", statistics=X).ok
    step = jax.vmap(norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    _, trained = step(X, state)
    check = selfcheck(norm, X, state=trained)
    assert check.ok
    assert "statistics" not in [finding.question for finding in check.findings]


@pytest.mark.slow
def test_masks_that_are_drawn_by_position():
    drop = nn.Sequential([nn.Dense(4), nn.Dropout(0.5, deterministic=False), nn.Dense(2)])
    variables = drop.init({"params": fixed_key(), "dropout": fixed_key()}, X)
    check = selfcheck(drop, variables, X, mode="train", rngs=fixed_key())
    assert check["examples"].text.startswith("they interact: one example changes the outputs")
    assert selfcheck(drop, variables, X, mode="dropout", rngs=fixed_key()).ok


def drawing(rng):
    return lambda p, x: x @ p * rng.normal()


def batch_mean(p, x):
    return (x - x.mean(axis=0)) @ p


def mixed(p, x):
    return jnp.tanh((x @ p).astype(jnp.bfloat16) @ p.T.astype(jnp.bfloat16)).astype(jnp.float32)


def test_what_can_be_wrong():
    for f, params, x, question, status, text in [
        (batch_mean, WEIGHT, X, "examples", "wrong", "they interact: one example changes"),
        (
            drawing(np.random.default_rng(0)),
            WEIGHT,
            X,
            "deterministic",
            "wrong",
            "two calls differ by ",
        ),
        (
            lambda p, x: jnp.ones((len(x), 1)) * p,
            WEIGHT[0, :1],
            X,
            "inputs",
            "wrong",
            "the outputs do not depend on x",
        ),
        (
            lambda p, x: x["a"] @ p,
            WEIGHT,
            {"a": X, "b": X},
            "inputs",
            "note",
            '"b" does not reach the outputs',
        ),
        (
            lambda p, x: x @ p["w"],
            {"w": WEIGHT, "dead": WEIGHT},
            X,
            "gradients",
            "note",
            "none for dead",
        ),
        (
            lambda p, x: x[:, :2] + 0 * p,
            WEIGHT[0],
            X,
            "gradients",
            "wrong",
            "no parameter has a gradient",
        ),
        (
            lambda p, x: jnp.sqrt(x @ (p * 0)),
            WEIGHT,
            X,
            "gradients",
            "wrong",
            "NaN or infinity in the gradient of all",
        ),
        (lambda p, x: jnp.log(x @ p * 0), WEIGHT, X, "runs", "wrong", "hold NaN or infinity"),
        (
            lambda p, x: (x @ p).sum(),
            WEIGHT,
            X,
            "runs",
            "wrong",
            "4 examples give float32[]: the first axis has to be",
        ),
        (lambda p, x: jnp.argmax(x @ p, -1), WEIGHT, X, "runs", "wrong", "outputs int32[4]"),
        (lambda p, x: x @ p.T, WEIGHT, X, "runs", "wrong", "TypeError: dot_general requires"),
        (mixed, WEIGHT, X, "dtypes", "note", "a unit roundoff of 0.008: half precision"),
        (mixed, WEIGHT, X, "examples", "ok", "independent"),
        (lambda p, x: x @ p, WEIGHT, X[:1], "examples", "not checked", "one example only"),
        (lambda p, x: x @ p, WEIGHT, X, "mode", "note", "a plain function"),
    ]:
        check = selfcheck(f, params, x)
        assert check[question].status == status, str(check)
        assert text in check[question].text
        assert check.ok == (status != "wrong")
        assert ("something" in str(check)) == (status == "wrong")


@pytest.mark.slow
def test_what_depends_on_tracing_and_on_wide_parameters(x64):
    calls = itertools.count(1)
    wide = jnp.asarray(WEIGHT, jnp.float64)
    check = selfcheck(lambda p, x: x @ p * next(calls), wide, jnp.asarray(X, jnp.float64))
    assert check["deterministic"].text.startswith("two calls differ by ")
    assert check["deterministic"].text.endswith("outside of JAX's keys, or is read while tracing")
    assert statuses(check)["the rest"] == "not checked"
    check = selfcheck(lambda p, x: (x @ p).astype(jnp.float32), wide, X)
    assert check["dtypes"].text.endswith(
        "the model rounds to a coarser dtype than that of its parameters"
    )
    check = selfcheck(lambda p, x: x @ p, wide, X)
    assert (
        check["dtypes"].text == "parameters float64, inputs float32, outputs float64: they differ"
    )


def test_an_engine_that_is_wrong_is_found(monkeypatch):
    from ntkdiag.checking import plain_jacobian

    monkeypatch.setattr(
        plain_jacobian,
        "ntk",
        lambda *args, **kwargs: ntkdiag.ntk(lambda p, x: 1.01 * (x @ p), *args[1:], **kwargs),
    )
    check = selfcheck(lambda p, x: x @ p, WEIGHT, X)
    end = ": relative error 0.02 to plain jax.vjp, in float64, more than 0.0003: please report it"
    assert check["engine"].text.endswith(end)
    assert not check.ok


class TwoHeads(nn.Module):
    """Logits, a second head, and a cache."""

    @nn.compact
    def __call__(self, x, cache_length: int = 0):
        h = nn.Dense(4)(x)
        returned = {"logits": nn.Dense(2)(h), "value": nn.Dense(1)(h)}
        if cache_length:
            returned["cache"] = jnp.zeros((cache_length, 4))
        return returned


def test_what_a_model_returns_beside_its_logits():
    for options, status, text in [
        (
            {},
            "note",
            'differentiated together: "logits" float32[4, 2], "value" float32[4, 1]; '
            'output="logits" takes the float32[4, 2] alone',
        ),
        (
            {"output": "logits"},
            "ok",
            'output="logits" takes float32[4, 2]; left out: "value" float32[4, 1]',
        ),
    ]:
        check = selfcheck(TwoHeads(), TwoHeads().init(fixed_key(), X), X, **options)
        assert check.ok
        assert (check["outputs"].status, check["outputs"].text) == (status, text)


def test_a_model_that_cannot_be_traced_does_not_run():
    check = selfcheck(lambda p, x: x @ p if float(x.sum()) > 0 else x @ p * 2, WEIGHT, X)
    assert check["runs"].status == "wrong"
    assert "f(params, x) to run; got ConcretizationTypeError: " in check["runs"].text
    assert check["runs"].text.endswith("jnp.where or jax.lax.cond in place of if.")


def test_rounding_is_told_from_a_wrong_engine(monkeypatch):
    from ntkdiag.checking import plain_jacobian

    exact = plain_jacobian.rows_in_float64

    def rounded_by_one_percent(*arguments):
        rows = exact(*arguments)
        return dataclasses.replace(
            rows, rows=[{path: 1.01 * leaf for path, leaf in row.items()} for row in rows.rows]
        )

    monkeypatch.setattr(plain_jacobian, "rows_in_float64", rounded_by_one_percent)
    check = selfcheck(lambda p, x: x @ p, WEIGHT, X)
    assert check.ok
    assert check["engine"].status == "note"
    assert (
        "error 0.02 to plain jax.vjp, in float64: rounding, for in float32 it is "
        in check["engine"].text
    )


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


CASES = """
import jax.numpy as jnp

def right():
    return lambda p, x: x @ p, jnp.ones((3, 2)), jnp.arange(12.0).reshape(4, 3)

def wrong():
    f, p, x = right()
    return {"model": lambda p, x: f(p, x - x.mean(0)), "variables": p, "x": x, "trainable": None}

def nothing():
    return 3
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Call the command line as a shell would, next to a file of cases."""
    (tmp_path / "selfcheck_cases.py").write_text(CASES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "selfcheck_cases", None)  # restored afterwards
    del sys.modules["selfcheck_cases"]

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ntkdiag", "selfcheck", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return call


def test_the_command_line(run):
    status, out, err = run("selfcheck_cases.py:right")
    assert (status, err) == (0, "")
    assert "nothing is wrong" in out
    status, out, err = run("selfcheck_cases.py:wrong")
    assert (status, err) == (1, "")
    assert "something is wrong" in out
    assert run("selfcheck_cases.py:wrong", "--joint")[0] == 0
    end = ". See: ntkdiag selfcheck --help\n"
    status, _, err = run("selfcheck_cases.py:nothing")
    assert status == 4
    assert err.startswith(
        "ntkdiag: ntkdiag selfcheck selfcheck_cases.py:nothing: expected a model,"
    )
    assert err.endswith(f"; got int as the model{end}")
    status, _, err = run("nowhere.py:case")
    assert status == 4
    assert (
        "ntkdiag selfcheck nowhere.py:case: expected a file that can be imported; got no file at"
        in err
    )
    assert "expected path.py:name" in run("selfcheck_cases.py")[2]
    assert "Invalid value for '--mode'" in run("selfcheck_cases.py:right", "--mode", "test")[2]


def unit_rows(params, x):
    """Rows of length 1; of a padded example, all zeros, the outputs are 0 and the gradient NaN."""
    h = x @ params["w"]
    empty = (x == 0).all(1, keepdims=True)
    return jnp.where(empty, 0.0, h / jnp.linalg.norm(h, axis=1, keepdims=True))


def root_of_sum(params, x):
    return jnp.sqrt(jnp.square(x @ params["w"]).sum(1, keepdims=True))


def masked_log(params, x):
    h = jnp.square(x @ params["w"])
    return jnp.where(h > 0, jnp.log(h), 0.0)


def test_a_gradient_that_is_nan_at_a_later_example():
    for f, places in [(unit_rows, (7,)), (root_of_sum, (3, 20, 39)), (masked_log, (0,))]:
        x = (
            np.random.default_rng(0)
            .normal(size=(8 if max(places) < 8 else 40, 3))
            .astype(np.float32)
        )
        x[list(places)] = 0
        assert np.isfinite(f({"w": WEIGHT}, x)).all()
        check = selfcheck(f, {"w": WEIGHT}, x)
        where = f"example {places[0]}" if len(places) == 1 else "examples 3, 20, 39"
        assert check["gradients"].status == "wrong"
        assert check["gradients"].text == (
            f"NaN or infinity in the gradient of w at {where} of {len(x)}"
        )
        assert not check.ok


def test_outputs_that_are_nan_at_a_later_example():
    x = np.abs(np.random.default_rng(0).normal(size=(21, 3))).astype(np.float32)
    x[17] = 0
    check = selfcheck(lambda params, x: jnp.log(x) @ params["w"], {"w": WEIGHT}, x)
    assert check["runs"].status == "ok"  # of the first examples
    assert check["gradients"].text == "NaN or infinity in the outputs at example 17 of 21"


def test_examples_with_nan_beyond_the_first_are_refused():
    x = np.zeros((9, 3), np.float32)
    x[8, 0] = np.nan
    with pytest.raises(ntkdiag.errors.InvalidInputError, match="expected examples x without NaN"):
        selfcheck(lambda params, x: x @ params["w"], {"w": WEIGHT}, x)
