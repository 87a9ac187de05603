"""Biases that have no gradient by symmetry are not dead."""

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import ntkdiag
from ntkdiag.monitor import InMemory


class Attends(nn.Module):
    """Attention to what came before; its keys have a bias."""

    @nn.compact
    def __call__(self, tokens):
        h = nn.Embed(8, 16)(tokens)
        mask = nn.make_causal_mask(tokens)
        h = h + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(h), mask=mask)
        return nn.Dense(8)(h)


@pytest.mark.slow
def test_biases_without_a_gradient_by_symmetry_are_no_finding():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 8, (48, 9))
    tokens[:, 1::2] = (tokens[:, :-1:2] + 3) % 8
    x, y = tokens[:, :-1], tokens[:, 1:]
    model = Attends()
    params = model.init(jax.random.key(0), x)["params"]
    found = []
    options = {"loss": "cross_entropy", "every": 5, "instruments": ("norms", "optimizer")}
    tx = ntkdiag.watch(
        optax.adamw(1e-3),
        ntkdiag.functionalize(model, {"params": params}),
        train=(x[:32], y[:32]),
        on_finding=found.append,
        writers=InMemory(),
        **options,
    )

    @jax.jit
    def step(params, state):
        loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(
            model.apply({"params": p}, x), y
        ).mean()
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(31):
        params, state = step(params, state)
    jax.effects_barrier()
    assert int(state.counter("measurements")) == 7
    assert not [finding.sentence for finding in found]
