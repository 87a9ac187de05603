"""Every library in every mode has the kernel of the same network written by hand."""

import functools
import itertools

import jax
import jax.numpy as jnp
import models_contract as models
import numpy as np
import pytest
from flax import nnx
from models_contract import by_hand, fixed_key, inputs, running, weights
from reference import assert_close

import ntkdiag
from ntkdiag.models import functionalize

MODES = {
    "eval": {},
    "dropout": {"mode": "dropout"},
    "train": {"mode": "train"},
}
MASKS = {"linen": models.linen_mask, "nnx": models.nnx_mask, "equinox": models.equinox_mask}


def made(library, mode, dtype, **options):
    """The model as its library has it, and as a Functional in a mode."""
    options |= MODES[mode]
    if library == "linen":
        module, variables = models.linen(dtype)
        return variables, functionalize(module, variables, rngs={"dropout": fixed_key()}, **options)
    if library == "nnx":
        (model,) = models.nnx_model(dtype)
        return model, functionalize(model, **options)
    module, state = models.equinox(dtype, "ema")
    return module, functionalize(module, state=state, key=fixed_key(), **options)


def hand_written(library, mode, x):
    """The same network as a plain JAX function of its weights."""
    statistics, mask = running(x.dtype), 0.5
    if mode != "eval":  # one mask for all examples, or one for each
        mask = MASKS[library](x if mode == "train" else x[:1])
    if mode == "train":
        statistics = None
    return functools.partial(by_hand, mask=mask, statistics=statistics)


def kernel_of(f, x):
    jacobian = jax.jacrev(f)(weights(x.dtype), x)
    return sum(
        jnp.einsum("noP,mpP->nomp", j, j)
        for j in (v.reshape(5, 2, -1) for v in jax.tree.leaves(jacobian))
    )


def snapshot(tree):
    tree = nnx.to_pure_dict(nnx.state(tree)) if isinstance(tree, nnx.Module) else tree
    raw = lambda leaf: (
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    )
    return [np.asarray(raw(leaf)) for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]


def same(a, b):
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


FAST = (("linen", "eval"), ("equinox", "eval"))


@pytest.mark.parametrize(
    ("library", "mode"),
    [
        pair if pair in FAST else pytest.param(*pair, marks=pytest.mark.slow)
        for pair in itertools.product(MASKS, MODES)
    ],
)
def test_the_contract(library, mode, x64):
    x = inputs(jnp.float64)
    model, fn = made(library, mode, jnp.float64)
    before = snapshot(model)
    f = hand_written(library, mode, x)
    # The value, also compiled, and twice.
    for run in (fn.apply, jax.jit(fn.apply), fn.apply):
        assert_close(run(fn.params, x), f(weights(x.dtype), x))
    # The kernel, and what it says of itself.
    examples = "joint" if mode == "train" else "independent"
    kernel = ntkdiag.ntk(*fn, x, reduction="full", examples=examples)
    assert_close(kernel.array, kernel_of(f, x))
    assert (kernel.convention.mode, kernel.convention.examples) == (mode, examples)
    assert f"mode={mode}" in str(kernel.convention)
    # Nothing of the user's has changed, and it comes back as it was.
    assert same(snapshot(model), before)
    assert same(snapshot(fn.restore(fn.params)), before)
    assert same(snapshot(fn.extract(fn.restore(fn.params))), snapshot(fn.params))


@pytest.mark.slow
def test_rows_and_columns_of_a_kernel_with_dropout_have_one_mask(x64):
    _, fn = made("linen", "dropout", jnp.float64)
    x = inputs(jnp.float64)
    whole = ntkdiag.ntk(*fn, x).array
    assert_close(ntkdiag.ntk(*fn, x[:2], x[3:]).array, np.asarray(whole)[:2, 3:])
    # The naive way, train mode, drops other units in every row: every example has a function of
    # its own.
    _, naive = made("linen", "train", jnp.float64)
    assert not np.allclose(naive(naive.params, x)[1:], naive(naive.params, x[1:]), rtol=1e-3)


def test_a_kernel_in_training_follows_the_function():
    """Without `examples=`: the function knows that its examples interact."""
    x = inputs(jnp.float32)
    _, joint = made("nnx", "train", jnp.float32)
    assert ntkdiag.ntk(*joint, x).convention.examples == "joint"
    with pytest.raises(ntkdiag.errors.ExamplesInteractError, match="joint"):
        ntkdiag.ntk(*joint, x, examples="independent")
