"""The numbers of a monitor in trainings, against dense algebra in float64."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from closed_responses import RATE, adam

import ntkdiag
from ntkdiag.monitor import Monitor

STEPS, EVERY = 41, 4
N, T, V = 16, 6, 5


class Normalised(nn.Module):
    """Batch normalisation behind a bias, which has no gradient."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
        return nn.Dense(V)(jnp.tanh(x))


def batch_norm():
    """Measured with the statistics of the batch, as it is trained."""
    rng = np.random.default_rng(1)
    model, x = Normalised(), rng.normal(size=(N, 6)).astype(np.float32)
    variables = model.init(jax.random.key(0), x)

    def apply(params, x):
        held = {"params": params, "batch_stats": variables["batch_stats"]}
        return model.apply(held, x, train=True, mutable=["batch_stats"])[0]

    fn = ntkdiag.functionalize(model, variables)
    return fn, apply, variables["params"], (x, rng.integers(0, V, N))


def transformer():
    """Masked attention, with parameters that are scalars and arrays of one element."""
    rng = np.random.default_rng(2)
    shapes = {
        "embed": (V, 8),
        "qkv": (8, 3, 8),
        "up": (8, 12),
        "down": (12, 8),
        "out": (8, V),
        "scale": (),
        "gain": (1,),
    }
    params = {name: rng.normal(size=shape) / 8**0.5 for name, shape in shapes.items()}
    params |= {"scale": np.asarray(1.0), "gain": np.ones(1)}
    tokens = rng.integers(0, V, (N, T))
    lengths = rng.integers(2, T + 1, N)
    weights = (np.arange(T) < lengths[:, None]).astype(np.float32)

    def apply(params, tokens):
        h = params["embed"][tokens]
        q, k, v = jnp.moveaxis(jnp.einsum("ntd,dse->ntse", h, params["qkv"]), 2, 0)
        scores = params["scale"] * jnp.einsum("nte,nse->nts", q, k)
        attention = jax.nn.softmax(jnp.where(jnp.tri(T, dtype=bool), scores, -1e9))
        h = h + attention @ v
        h = h + params["gain"] * (jax.nn.gelu(h @ params["up"]) @ params["down"])
        return h @ params["out"]

    return apply, apply, params, (tokens, (3 * tokens + 1) % V, weights)


NETWORKS = {network.__name__: network for network in (batch_norm, transformer)}


def before(history):
    """The gradients that second moments have seen at a point: all but the one at hand."""
    return history[: max(len(history) - 1, 1)]


def adamw(histories, params):
    return [adam(before(history)) for history in histories], 0.1 * RATE


def clipped(histories, params):
    """AdamW behind a clip of the norm at 0.5."""
    norms = [np.sqrt(sum(np.sum(g**2) for g in step)) for step in zip(*histories, strict=True)]
    factors = [min(1.0, 0.5 / norm) for norm in norms]
    of_clipped = [[c * g for c, g in zip(factors, h, strict=True)] for h in histories]
    return [factors[-1] * adam(before(history)) for history in of_clipped], 0.1 * RATE


# Optimizer, E of all arrays and the decay by gradients up to the step and parameters.
OPTIMIZERS = {
    "adamw": (optax.adamw(RATE, weight_decay=0.1), adamw),
    "clipped": (
        optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(RATE, weight_decay=0.1)),
        clipped,
    ),
}


def loss_of(outputs, train):
    """The mean cross-entropy of what counts."""
    each = optax.softmax_cross_entropy_with_integer_labels(outputs, train[1])
    return jnp.mean(each) if len(train) == 2 else jnp.sum(each * train[2]) / np.sum(train[2])


class Dense:
    """A network in float64, by dense derivatives."""

    def __init__(self, apply, train):
        def flat(params):
            outputs = apply(params, train[0])
            return outputs.reshape(-1), outputs

        self._jacobian = jax.jit(jax.jacrev(flat, has_aux=True))
        self._hessian = jax.jit(jax.hessian(lambda outputs: loss_of(outputs, train)))

    def at(self, params):
        """J of each array, and d^2 L / df^2."""
        with jax.enable_x64(True):
            params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
            jacobian, outputs = self._jacobian(params)
            hessian = self._hessian(outputs).reshape(outputs.size, outputs.size)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(jacobian)], np.asarray(hessian)


def flat_of(leaves):
    """[k P]"""
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def aligned(kernel, train):
    """The centred alignment of the positions that count."""
    y = train[1]
    counts = np.ones(y.shape) if len(train) == 2 else train[2]
    counts = np.repeat(counts.reshape(N, -1), V, axis=1)
    targets = np.eye(V)[y].reshape(N, -1)

    def centred(rows):
        means = (rows * counts).sum(axis=0) / np.maximum(counts.sum(axis=0), 1)
        return counts * (rows - means)

    targets = centred(targets).reshape(-1)
    half = np.stack([centred(row.reshape(N, -1)).reshape(-1) for row in kernel])
    whole = np.stack([centred(row.reshape(N, -1)).reshape(-1) for row in half.T])
    return targets @ kernel @ targets / np.linalg.norm(whole) / (targets @ targets)


def right_numbers(jacobian, hessian, response, decay, first, train):
    """What a measurement estimates."""
    kernel = flat_of(jacobian) @ flat_of(jacobian).T
    first = kernel if first is None else first
    scaled = [
        j * np.sqrt(np.broadcast_to(e, j.shape[1:]))
        for j, e in zip(jacobian, response, strict=True)
    ]
    curvature = flat_of(scaled).T @ hessian @ flat_of(scaled)
    values = np.linalg.eigvalsh(kernel)[::-1]
    traces = np.array([np.sum(leaf**2) for leaf in jacobian])
    return first, {
        "margin": np.linalg.eigvalsh(curvature)[-1] + decay / 2,
        "eigenvalues": values[:5],
        "trace": values.sum(),
        "participation_ratio": values.sum() ** 2 / np.sum(values**2),
        "drift": np.linalg.norm(kernel - first) / np.linalg.norm(first),
        "alignment": aligned(kernel, train),
        "layer_trace": traces / traces.sum(),
    }


def readings(network, optimizer):
    """What a Monitor says at every fourth step of a training, and what is right."""
    f, apply, params, train = NETWORKS[network]()
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    x = jnp.asarray(train[0], jnp.float32 if train[0].dtype.kind == "f" else int)
    train = x, *train[1:]
    tx, formula = OPTIMIZERS[optimizer]
    dense = Dense(apply, train)
    options = {"every": EVERY, "instruments": ("kernel", "margin", "optimizer")}
    monitor = Monitor(f, train=train, loss="cross_entropy", optimizer=tx, **options)

    @jax.jit
    def step(params, state):
        gradient = jax.grad(lambda params: loss_of(apply(params, x), train))(params)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, gradient

    def wide(tree):
        return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]

    state, gradients, first, found = tx.init(params), [], None, []
    for number in range(STEPS):
        measurement = monitor(number, params, state)
        after, state, gradient = step(params, state)
        gradients.append(wide(gradient))
        if measurement is not None:
            response, decay = formula(list(zip(*gradients, strict=True)), wide(params))
            first, right = right_numbers(*dense.at(params), response, decay, first, train)
            found.append((measurement, right))
        params = after
    return found


# Responses of other optimizers are those of tests/optimizer.
PAIRS = [("batch_norm", "adamw"), ("transformer", "clipped")]


@pytest.mark.slow
@pytest.mark.parametrize(("network", "optimizer"), PAIRS)
def test_readings_are_those_of_dense_algebra(network, optimizer):
    found = readings(network, optimizer)
    assert len(found) == STEPS // EVERY + 1
    margins = np.array([float(row.margin) / right["margin"] for row, right in found])
    values = np.stack([row.eigenvalues / right["eigenvalues"] for row, right in found])
    assert abs(margins[0] - 1) < 0.03, margins
    assert np.sum(abs(margins - 1) > 0.03) <= 1, margins
    np.testing.assert_allclose(values[:, 0], 1, rtol=0.01)
    assert np.mean(abs(values[:, :3] - 1) < 0.01) > 0.9, values
    for row, right in found:
        for name in ("trace", "participation_ratio", "drift", "alignment", "layer_trace"):
            # Readings of a run have the same signs: one run tells little of 95 %.
            estimate, want = row[name], right[name]
            rounding = 1e-5 * np.abs(want) + 1e-6
            is_within = want >= 2 * estimate.lower - estimate.value - rounding
            is_within &= want <= 2 * estimate.upper - estimate.value + rounding
            assert np.mean(is_within) >= (0.7 if name == "layer_trace" else 1.0), name
