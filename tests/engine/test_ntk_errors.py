"""What `ntk` says to bad input."""

import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax import lax

import ntkdiag
from ntkdiag.errors import InvalidInputError, MemoryBudgetError, UnsupportedModelError

F, PARAMS, X = cases.mlp()


def refuse(match, *args, error=InvalidInputError, **kwargs):
    with pytest.raises(error, match=match):
        ntkdiag.ntk(*args, **kwargs)


def test_parameters():
    of = lambda b: {**PARAMS, "b": b}
    refuse(r"got int32 at b. Hold it fixed", F, of(jnp.arange(7)), X)
    complex64 = PARAMS["b"].astype(jnp.complex64)
    refuse(r"got complex64 at b. Keep real and imaginary parts", F, of(complex64), X)
    refuse(r"got float at a. Make numbers arrays", lambda p, x: p["a"] * x, {"a": 1.0}, X)
    state = TrainState.create(apply_fn=None, params=PARAMS, tx=optax.sgd(0.1))
    refuse("got int at step. Pass its `params` alone", F, state, X)
    refuse("at least one parameter; got an empty tree", F, {}, X)
    gone = jax.tree.map(jnp.array, PARAMS)
    gone["b"].delete()
    refuse(r"got deleted buffers: b. They were donated", F, gone, X)


@pytest.mark.smoke
def test_nan_parameters():
    params = {**PARAMS, "w": jnp.asarray(PARAMS["w"]).at[0, 0].set(jnp.nan)}
    refuse(r"finite parameters; got NaN or infinity in w", F, params, X)
    assert np.isnan(np.asarray(ntkdiag.ntk(F, params, X, check=False))).any()


def test_examples():
    refuse(r"at least one; got x: \(0, 5\)", F, PARAMS, X[:0])
    two = {"a": X, "b": X[:2]}
    refuse(r"the same for all.*\(3, 5\).*\(2, 5\)", F, PARAMS, two)
    gone = jnp.array(X)
    gone.delete()
    refuse("live arrays in x2; got deleted buffers: the only leaf", F, PARAMS, X, gone)


def with_nan(x):
    x = np.array(x)
    x[0, 0] = np.nan
    return x


def test_nan_among_the_examples():
    """It is named by the path of its leaf; infinities, as masks hold them, are not refused."""
    f = lambda p, x: F(p, x["image"][0])
    tree = {"image": [with_nan(X)], "mask": np.full(X.shape, -np.inf, np.float32)}
    message = r"examples {0} without NaN; got NaN in {0}\['image'\]\[0\]\. Drop the examples"
    refuse(message.format("x"), f, PARAMS, tree)
    whole = {**tree, "image": [X]}
    refuse(message.format("x2"), f, PARAMS, whole, tree)
    assert np.isfinite(np.asarray(ntkdiag.ntk(f, PARAMS, whole))).all()
    assert np.isnan(np.asarray(ntkdiag.ntk(f, PARAMS, tree, check=False))).any()


def test_nan_among_the_examples_of_other_calls():
    x = with_nan(X)
    for call in (
        lambda: ntkdiag.NTKOperator(F, PARAMS, x),
        lambda: ntkdiag.compare(PARAMS, PARAMS, model=F, train=(x, None)),
        lambda: ntkdiag.Monitor(F, train=(x, None)),
        lambda: ntkdiag.linearization_gap(F, PARAMS, PARAMS, x),
        lambda: ntkdiag.selfcheck(F, PARAMS, x),
    ):
        with pytest.raises(InvalidInputError, match="examples x without NaN; got NaN in x"):
            call()


def test_outputs():
    no_axis = r"example axis first, length 1; got float32\[\]"
    refuse(no_axis, lambda p, x: F(p, x).sum(), PARAMS, X)
    refuse(r"got int32\[1, 4\].*Return only what", lambda p, x: F(p, x).astype(int), PARAMS, X)
    refuse("real and imaginary parts as two outputs", lambda p, x: F(p, x) + 1j, PARAMS, X)
    refuse("real floating arrays.*got nothing", lambda p, x: {}, PARAMS, X)
    match = r"f2=.*\"full\" or \"sum-of-logits\" between .*got \"mean\" with 4 and 3 outputs"
    refuse(match, F, PARAMS, X, f2=lambda p, x: F(p, x)[:, :3])


def test_reductions():
    names = "one of 'mean', 'trace', 'full'.*got 'tracee'.*4 outputs per example"
    refuse(names, F, PARAMS, X, reduction="tracee")
    one = ntkdiag.kernel.RandomProjections(1)
    refuse("with 2 <= k", F, PARAMS, X, reduction=one)
    kernel = ntkdiag.ntk(F, PARAMS, X, reduction="diagonal")
    with pytest.raises(InvalidInputError, match=r"index `kernel.array\[..., o\]`"):
        _ = kernel.matrix


@pytest.mark.usefixtures("wrong_types")
def test_options():
    refuse("expected 'independent' or 'joint'; got 'both'", F, PARAMS, X, examples="both")
    none = r"per_leaf='kernel', which matches none. The parameters are: b, c, v, w"
    refuse(none, F, PARAMS, X, per_leaf="kernel")
    refuse("which matches none that are left", F, PARAMS, X, per_leaf=["**", next(iter(PARAMS))])
    for memory in ("-1", 0, "3XB"):
        refuse("expected a positive number of bytes", F, PARAMS, X, memory=memory)
    assert ntkdiag.plan(F, PARAMS, X, memory="2E9").budget_bytes == 2 * 10**9


def test_preconditioners():
    match = "got a tree with w. Use the tree of params: b, c, v, w"
    refuse(match, F, PARAMS, X, preconditioner={"w": 1.0})
    wrong = {name: jnp.ones(3) for name in PARAMS}
    refuse("one per parameter; got shapes", F, PARAMS, X, preconditioner=wrong)
    refuse("zero, negative or NaN. Add the epsilon", F, PARAMS, X, preconditioner=0.0)


@pytest.mark.smoke
def test_what_f_raises_says_what_f_was_given():
    with pytest.raises(Exception, match=r".") as caught:
        ntkdiag.ntk(F, PARAMS, X[:, :2])
    notes = "\n".join(caught.value.__notes__)
    assert "with one example, on an axis of length 1: params/b float32[7], " in notes
    assert ", x float32[1, 2]." in notes
    refuse("that it does not know to f: check their spelling.", F, PARAMS, X, output="full")


@pytest.mark.slow
def test_the_budget_named_is_enough():
    with pytest.raises(MemoryBudgetError, match="got 10 B") as error:
        ntkdiag.ntk(F, PARAMS, X, memory=10, reduction="full")
    least = re.search(r"at least ([0-9.]+ \w+)", str(error.value))[1]
    assert ntkdiag.ntk(F, PARAMS, X, memory=least, reduction="full").n_examples == len(X)


def test_functions_without_a_reverse_derivative():
    def f(p, x):
        return lax.fori_loop(0, jnp.int32(x[0, 0]), lambda _, h: h * 2, x @ p["w"])

    match = "JAX can differentiate in reverse mode; got .*dynamic start/stop values.*lax.scan"
    refuse(match, f, {"w": PARAMS["w"]}, X, error=UnsupportedModelError)
