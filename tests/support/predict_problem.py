"""A small regression problem: a network, its kernels, and its linearization trained in parameter space."""

import jax
import jax.numpy as jnp
import numpy as np
import two_layers

from ntkdiag import Kernel, linearize
from ntkdiag.kernel import Convention

N, M, C = 6, 4, 2
RNG = np.random.default_rng(0)
X, X_TEST, Y = RNG.normal(size=(N, 3)), RNG.normal(size=(M, 3)), RNG.normal(size=(N, C))
PARAMS = {"w": RNG.normal(size=(3, 8)), "v": RNG.normal(size=(8, C)) / 3}


def net(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


FULL = Convention("full", C)
WEIGHTS = PARAMS["w"], PARAMS["v"]
# In the order of the leaves, {"v": ..., "w": ...}.
J, J_TEST = (
    np.concatenate(two_layers.jacobian(*WEIGHTS, x)[::-1], axis=2) for x in (X, X_TEST)
)  # [n o P]
K = Kernel(np.einsum("noP,mpP->nomp", J, J), FULL)
K_TEST = Kernel(np.einsum("noP,mpP->nomp", J_TEST, J), FULL, symmetric=False)
LARGEST = np.linalg.eigvalsh(np.einsum("noP,mpP->nomp", J, J).reshape(N * C, N * C))[-1]
F0 = two_layers.outputs(*WEIGHTS, X)
F0_TEST = two_layers.outputs(*WEIGHTS, X_TEST)
OUTPUTS = {"kernel_test": K_TEST, "f0": F0, "f0_test": F0_TEST}


def squared(f, y=Y):
    return 0.5 * jnp.sum((f - y) ** 2) / N


def train_linear(steps, eta, *, beta=0.0, kind="heavy-ball", decay=0.0, loss=squared):
    """Train f_lin in parameter space; outputs on both sets after each number of steps."""
    f_lin = linearize(net, PARAMS)
    start = jax.tree.map(jnp.asarray, PARAMS)

    def total(p):
        distance = sum(
            jnp.sum((a - b) ** 2)
            for a, b in zip(jax.tree.leaves(p), jax.tree.leaves(start), strict=True)
        )
        return loss(f_lin(p, X)) + 0.5 * decay * distance

    def step(_, state):
        p, v = state
        g = jax.grad(total)(p)
        fresh = 1 - beta if kind == "ema" else 1.0
        v = jax.tree.map(lambda v, g: beta * v + fresh * g, v, g)
        move = jax.tree.map(lambda v, g: g + beta * v, v, g) if kind == "nesterov" else v
        return jax.tree.map(lambda p, m: p - eta * m, p, move), v

    @jax.jit
    def advance(state, count):
        state = jax.lax.fori_loop(0, count, step, state)
        return state, f_lin(state[0], X), f_lin(state[0], X_TEST)

    state, saved = (start, jax.tree.map(jnp.zeros_like, start)), []
    for gap in np.diff([0, *steps]):
        state, *outputs = advance(state, gap)
        saved.append(outputs)
    return [np.stack(part) for part in zip(*saved, strict=True)]
