"""A tiny classification problem, and the numbers a monitor must report on it, computed naively."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import reference

N, D, H, C = 5, 3, 4, 2


def f(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def problem():
    rng = np.random.default_rng(0)
    params = {"a": jnp.asarray(rng.normal(size=(D, H))), "b": jnp.asarray(rng.normal(size=(H, C)))}
    return params, rng.normal(size=(N, D)), np.array([0, 1, 1, 0, 1])


def loss(params, x, y):
    return 0.5 * jnp.mean(jnp.sum((f(params, x) - jax.nn.one_hot(y, C)) ** 2, axis=1))


def train(tx, params, steps, every_state=None):
    """Run gradient steps under jit; return the parameters before every step, and the last state."""
    _, x, y = problem()

    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.grad(loss)(params, x, y), state, params)
        return jax.tree.map(jnp.add, params, updates), state

    state, trajectory = tx.init(params), []
    for _ in range(steps):
        trajectory.append(params)
        params, state = step(params, state)
        if every_state is not None:
            every_state.append(state)
    jax.effects_barrier()
    return trajectory, state


def naive(params, params0, *, x, y=None, learning_rate=None, tau=2.0, model=f, sigma=None):
    """The full-kernel diagnostics at `params`, relative to `params0`."""
    k, k0 = (reference.ntk(model, p, x) for p in (params, params0))
    n, c = k.shape[:2]
    k, k0 = (a.reshape(n * c, n * c) for a in (k, k0))
    centre = np.kron(np.eye(n) - 1 / n, np.eye(c))
    kc, kc0 = centre @ k @ centre, centre @ k0 @ centre
    eigenvalues = np.linalg.eigvalsh(k)[::-1]
    curvature = eigenvalues[0] if sigma is None else np.linalg.eigvals(sigma @ k).real.max()
    values = {
        "eigenvalues": eigenvalues,
        "trace": eigenvalues.sum(),
        "participation_ratio": eigenvalues.sum() ** 2 / (eigenvalues**2).sum(),
        "drift": np.sqrt(((k - k0) ** 2).sum() / (k0**2).sum()),
        "distance_centred": 1 - (kc * kc0).sum() / np.sqrt((kc**2).sum() * (kc0**2).sum()),
        "critical_learning_rate": tau * n / curvature,
    }
    if y is not None:
        targets = np.eye(c)[y] if y.ndim == 1 else y
        permuted = []
        for order in itertools.permutations(range(n)):  # the first is the identity
            target = centre @ targets[list(order)].ravel()
            norms = np.sqrt((kc**2).sum()) * (target @ target)
            permuted.append(target @ kc @ target / norms)
        chance = np.mean(permuted)
        values["alignment"] = permuted[0]
        values["alignment_chance"] = chance
        values["alignment_standard_deviation"] = np.std(permuted)
        values["alignment_above"] = (permuted[0] - chance) / (1 - chance)
    if learning_rate is not None:
        values["margin"] = learning_rate * curvature / (tau * n)
    return values
