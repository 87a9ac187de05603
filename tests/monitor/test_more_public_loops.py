"""More loops of public repositories: each starts `watch` in one line plus its loss, and has a margin at every reading.

What these losses have: weights beside the labels, accumulated gradients; and an update that is made without parameters.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import OptimizerStatus, Status

import ntkdiag
from ntkdiag.monitor import InMemory


def watched(f, loss, **options):
    """What `watch` takes here, but for the optimizer and the examples; and where its numbers go."""
    memory = InMemory()
    watch = functools.partial(
        ntkdiag.watch,
        f=f,
        loss=loss,
        every=5,
        instruments=("margin", "optimizer"),
        writers=memory,
        **options,
    )
    return watch, memory


def check_margins(memory, due):
    """A number from every measurement, of an optimizer that was recognised."""
    jax.effects_barrier()
    assert memory.steps == due
    for row in memory.rows:
        assert row["status"] == Status.MEASURED
        statuses = (OptimizerStatus.RECOGNISED, OptimizerStatus.YOUNG)
        assert row["optimizer_status"] in statuses, row
        assert np.isfinite(row["margin"]), row
        assert 0 < row["margin"] <= row["margin_upper"], row


# google-deepmind/nanodo: a decoder, weights where there are tokens, accumulated and clipped gradients

WORDS, WINDOW, PADDING = 16, 8, 0


class Block(nn.Module):
    """Attention to what came before, and two layers, without biases as in nanodo."""

    @nn.compact
    def __call__(self, h):
        mask = nn.make_causal_mask(h[..., 0])
        attention = nn.MultiHeadDotProductAttention(2, use_bias=False)
        h = h + attention(nn.LayerNorm(use_bias=False)(h), mask=mask)
        wide = nn.Dense(32, use_bias=False)(nn.LayerNorm(use_bias=False)(h))
        return h + nn.Dense(12, use_bias=False)(nn.gelu(wide))


class Decoder(nn.Module):
    """Tokens in, logits of the next ones out by the same embedding."""

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(WORDS, 12)
        h = embed(tokens) + nn.Embed(WINDOW, 12)(jnp.arange(tokens.shape[-1]))
        h = Block()(h)
        return embed.attend(nn.LayerNorm(use_bias=False)(h))


def texts(n):
    """Texts that count up by three; behind their ends is padding."""
    rng = np.random.default_rng(0)
    tokens = 1 + (rng.integers(0, WORDS - 1, (n, 1)) + 3 * np.arange(WINDOW + 1)) % (WORDS - 1)
    tokens[np.arange(WINDOW + 1) >= rng.integers(4, WINDOW + 2, (n, 1))] = PADDING
    return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.slow
def test_accumulated_gradients_of_a_decoder():
    x, y = texts(64)
    weights = (y != PADDING).astype(np.float32)
    model = Decoder()
    params = jax.jit(model.init)(jax.random.key(0), x)["params"]
    f = lambda params, x: model.apply({"params": params}, x)
    rates = optax.warmup_cosine_decay_schedule(1e-4, 3e-3, 4, 16)
    decayed = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
    adamw = optax.adamw(rates, b2=0.98, weight_decay=0.1, mask=decayed)
    clipped = optax.chain(optax.clip_by_global_norm(1.0), adamw)
    watch, memory = watched(f, "cross_entropy")
    tx = watch(optax.MultiSteps(clipped, every_k_schedule=2), train=(x[:16], y[:16], weights[:16]))

    def loss(params, x, y, weights):
        each = optax.softmax_cross_entropy_with_integer_labels(f(params, x), y)
        return jnp.sum(each * weights) / jnp.sum(weights)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, opt_state, batch):
        grads = jax.grad(loss)(params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    opt_state, rng = tx.init(params), np.random.default_rng(1)
    for _ in range(22):
        chosen = rng.integers(0, 64, 16)
        params, opt_state = train_step(params, opt_state, (x[chosen], y[chosen], weights[chosen]))
    # A step is two gradients.
    check_margins(memory, [1, 5, 10])
    assert int(opt_state.gradient_step) == 11


# google/brax: `optimizer.update(grads, optimizer_state)` in a scan


def gradient_update_fn(loss_fn, optimizer):
    """brax.training.gradients, without pmap."""
    loss_and_grad = jax.value_and_grad(loss_fn)

    def f(params, data, optimizer_state):
        value, grads = loss_and_grad(params, data)
        params_update, optimizer_state = optimizer.update(grads, optimizer_state)
        return value, optax.apply_updates(params, params_update), optimizer_state

    return f


def policy_trained(optimizer, f, loss, batches, params):
    """Parameters after a pass through the batches, in one program."""
    update = gradient_update_fn(lambda params, data: loss(f(params, data["x"]), data), optimizer)

    def sgd_step(carry, data):
        params, optimizer_state = carry
        value, params, optimizer_state = update(params, data, optimizer_state)
        return (params, optimizer_state), value

    start = params, optimizer.init(params)
    (params, optimizer_state), losses = jax.jit(lambda: jax.lax.scan(sgd_step, start, batches))()
    return params, optimizer_state, losses


def test_an_update_without_parameters_passes_through():
    rng = np.random.default_rng(0)
    batches = {
        "x": rng.normal(size=(12, 16, 5)).astype(np.float32),
        "action": rng.integers(0, 3, (12, 16)),
        "advantage": rng.normal(size=(12, 16)).astype(np.float32),
    }
    shapes = {"hidden": (5, 16), "logits": (16, 3)}
    params = {k: jnp.asarray(rng.normal(size=s) / 4, jnp.float32) for k, s in shapes.items()}
    f = lambda params, x: jax.nn.swish(x @ params["hidden"]) @ params["logits"]

    def surrogate(logits, y):
        taken = jax.nn.log_softmax(logits)[jnp.arange(len(logits)), y["action"]]
        return -jnp.mean(taken * y["advantage"])

    probe = jax.tree.map(lambda leaf: leaf[0], batches)
    watch, memory = watched(f, surrogate)
    tx = watch(optax.adam(3e-4), train=(probe["x"], probe))
    with pytest.warns(RuntimeWarning, match="came without the parameters") as said:
        after, state, losses = policy_trained(tx, f, surrogate, batches, params)
    jax.effects_barrier()
    assert len(said) == 1
    assert memory.rows == []
    assert ntkdiag.record(state)["step"] == -1
    plain = policy_trained(optax.adam(3e-4), f, surrogate, batches, params)
    jax.tree.map(np.testing.assert_array_equal, (after, state.ntk_inner, losses), plain)
    assert int(state.ntk_count) == 12
