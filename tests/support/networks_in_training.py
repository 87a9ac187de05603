"""Small convolutional networks with a step of training, and dense margins in float64."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import ntkdiag

N_PROBE, BATCH, N_DATA, N_CLASSES = 24, 32, 128, 5
RATE, DECAY, CLIP = 1e-3, 0.1, 0.5

OPTIMIZERS = {
    "adam": lambda: optax.adam(RATE),
    "clipped adamw": lambda: optax.chain(
        optax.clip_by_global_norm(CLIP), optax.adamw(RATE, weight_decay=DECAY)
    ),
}


class Convolutions(nn.Module):
    """Images of 6 x 6."""

    norm: str = "none"

    @nn.compact
    def __call__(self, x, train=True):
        x = x.reshape(-1, 6, 6, 1)
        for width in (4, 8):
            x = nn.Conv(width, (3, 3), param_dtype=x.dtype)(x)
            if self.norm == "batch":
                x = nn.BatchNorm(use_running_average=not train, param_dtype=x.dtype)(x)
            x = nn.avg_pool(nn.relu(x), (2, 2), (2, 2))
        return nn.Dense(N_CLASSES, param_dtype=x.dtype)(x.reshape(x.shape[0], -1))


NETWORKS = {"cnn": Convolutions, "cnn with batch norm": lambda: Convolutions("batch")}


def data(dtype=jnp.float32):
    """Inputs `[N_DATA 36]`, and classes that depend on them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N_DATA, 36))
    y = np.argmax(
        x @ rng.normal(size=(36, N_CLASSES)) + rng.normal(size=(N_DATA, N_CLASSES)), axis=1
    )
    return jnp.asarray(x, dtype), jnp.asarray(y)


@dataclasses.dataclass(frozen=True)
class Network:
    """A network with its data, and what trains it."""

    model: nn.Module
    variables: Any
    x: Any
    y: Any

    @staticmethod
    def of(name, dtype=jnp.float32):
        """A network by its name."""
        x, y = data(dtype)
        model = NETWORKS[name]()
        return Network(model, jax.jit(model.init)(jax.random.key(0), x[:4]), x, y)

    @property
    def statistics(self):
        """The collections beside the parameters."""
        return {name: tree for name, tree in self.variables.items() if name != "params"}

    def watched(self, optimizer, **options):
        """The optimizer under `watch`, on the first examples."""
        fn = ntkdiag.functionalize(self.model, self.variables)
        train = self.x[:N_PROBE], self.y[:N_PROBE]
        return ntkdiag.watch(optimizer, fn, train=train, loss="cross_entropy", **options)

    def gradient(self, params, statistics, batch):
        """Of the loss on a batch, and the statistics as they have moved."""

        def loss(params):
            x, y = batch
            logits, moved = self.model.apply(
                {"params": params, **statistics}, x, mutable=list(statistics)
            )
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), moved

        return jax.grad(loss, has_aux=True)(params)

    def step(self, tx):
        """(params, statistics, state), batch -> the same after one step."""

        def step(carry, batch):
            params, statistics, state = carry
            gradient, statistics = self.gradient(params, statistics, batch)
            updates, state = tx.update(gradient, state, params)
            return optax.apply_updates(params, updates), statistics, state

        return step

    def start(self, tx):
        """What training begins from, in buffers that may be donated."""
        params, statistics = jax.tree.map(jnp.copy, (self.variables["params"], self.statistics))
        return params, statistics, tx.init(params)

    def batches(self, n):
        """Batches of a training of n steps."""
        rng = np.random.default_rng(1)
        for _ in range(n):
            chosen = rng.integers(0, N_DATA, BATCH)
            yield self.x[chosen], self.y[chosen]


def dense_margin_of(f, loss):
    """(params, x, E) -> lambda_max(E^1/2 J^T (d^2 L / df^2) J E^1/2) in float64; `loss` is of the outputs."""

    @jax.jit
    def parts(params, x, response):
        """J E^1/2, and the Hessian over all outputs."""
        flat, whole = ravel_pytree(params)
        root = jnp.sqrt(ravel_pytree(response)[0])
        outputs, whole_outputs = ravel_pytree(f(params, x))
        jacobian = jax.jacrev(lambda flat: ravel_pytree(f(whole(flat), x))[0])(flat)
        return jacobian * root, jax.hessian(lambda flat: loss(whole_outputs(flat)))(outputs)

    def margin(params, x, response):
        with jax.enable_x64(True):
            rows, hessian = parts(*jax.tree.map(_wide, (params, x, response)))
            values, vectors = np.linalg.eigh(np.asarray(hessian))
            rows = (vectors * np.sqrt(np.maximum(values, 0.0))).T @ np.asarray(rows)
            return float(np.linalg.norm(rows, 2) ** 2)

    return margin


def _wide(leaf):
    return (
        jnp.asarray(leaf, jnp.float64)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
        else jnp.asarray(leaf)
    )
