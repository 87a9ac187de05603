"""What the intervals of a monitor cover: redraws of examples, and of networks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ntkdiag.monitor import measure

N, D, H, V = 48, 6, 16, 4
MANY = 2048


def f(params, x):
    return jnp.tanh(jnp.tanh(x @ params["w"] + params["b"]) @ params["u"]) @ params["v"]


def draw(key):
    keys = jax.random.split(key, 3)
    shapes = {"w": (D, H), "u": (H, H), "v": (H, V)}
    params = {
        name: jax.random.normal(key, shape) / shape[0] ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return params | {"b": jnp.zeros(H)}


@functools.cache
def population():
    """Parameters after some training, and all examples there are."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(MANY, D)), jnp.float32)
    teacher = 3 * f(draw(jax.random.key(9)), x) + rng.gumbel(size=(MANY, V)) / 2
    y = teacher.argmax(axis=1)
    params = draw(jax.random.key(0))

    def step(params, _):
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient_of(params, x, y)), None

    return jax.jit(lambda params: jax.lax.scan(step, params, length=100)[0])(params), x, y


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()


gradient_of = jax.grad(loss)


def of_each(one, seed):
    """What a function says of 200 keys."""
    keys = jax.random.split(jax.random.key(seed), 200)
    return jax.tree.map(np.asarray, jax.jit(lambda keys: jax.lax.map(one, keys))(keys))


def covered(found, name, right):
    name, *layer = name.split("/")
    lower, upper = ("/".join([f"{name}_{end}", *layer]) for end in ("lower", "upper"))
    return np.mean((found[lower] <= right) & (right <= found[upper]))


@pytest.mark.slow
def test_intervals_over_examples_hold_the_number_of_all_examples():
    """Margin, noise scale, error of a step; the scale of a gradient is 1, and 1/2 of a half."""
    params, x, y = population()
    optimizer = optax.sgd(1.0)
    state = optimizer.init(params)
    options = {"loss": "cross_entropy", "optimizer": optimizer, "batch_size": N}
    options["instruments"] = ("margin", "noise_scale", "step_error")

    def one(key):
        of_probe, of_batch = jax.random.split(key)
        rows = jax.random.choice(of_probe, MANY, (N,), replace=False)
        measured = measure(f, train=(x[rows], y[rows]), **options)
        batch = jax.random.choice(of_batch, MANY, (N,), replace=False)
        gradient = gradient_of(params, x[batch], y[batch])
        whole = measured(params, state, gradient)
        half = measured(params, state, jax.tree.map(lambda leaf: 0.5 * leaf, gradient))
        return whole | {
            f"half{end}": half[f"gradient_scale{end}"] for end in ("", "_lower", "_upper")
        }

    found = of_each(one, seed=1)
    jacobian = jax.jit(jax.jacrev(f))(params, x)
    rows = np.concatenate(
        [np.asarray(leaf, np.float64).reshape(MANY, V, -1) for leaf in jax.tree.leaves(jacobian)],
        axis=2,
    )
    p = np.asarray(jax.nn.softmax(f(params, x)), np.float64)
    hessian = p[:, :, None] * np.eye(V) - p[:, :, None] * p[:, None, :]
    curvature = np.einsum("nop,noq,nqr->pr", rows, hessian, rows, optimize=True) / MANY
    right = np.linalg.eigvalsh(curvature)[-1] / 2
    assert 0.88 <= covered(found, "margin", right) <= 0.99
    assert found["margin"].mean() > right  # of few examples it is too high
    gradients = np.einsum("nop,no->np", rows, p - np.eye(V)[np.asarray(y)])
    mean = gradients.mean(axis=0)
    noise = np.sum((gradients - mean) ** 2) / (MANY - 1) / (mean @ mean)
    assert covered(found, "noise_scale", noise) >= 0.88
    assert covered(found, "gradient_scale", 1.0) >= 0.9
    assert covered(found, "half", 0.5) >= 0.9
    assert np.isfinite(found["step_error"]).all()


@pytest.mark.slow
def test_intervals_over_signs_hold_the_number_of_the_dense_kernel():
    """Of 200 networks, each measured before and after it moved."""
    y = np.arange(24) % V
    centre = np.kron(np.eye(24) - 1 / 24, np.eye(V))
    targets = centre @ np.eye(V)[y].reshape(-1)

    def dense(params, x):
        jacobian = jax.jacrev(lambda params: f(params, x).reshape(-1))(params)
        rows = [leaf.reshape(24 * V, -1) for leaf in jax.tree.leaves(jacobian)]
        traces = jnp.stack([jnp.sum(leaf**2) for leaf in rows])
        rows = jnp.concatenate(rows, axis=1)
        kernel = rows @ rows.T
        return {
            "trace": traces.sum(),
            "participation_ratio": traces.sum() ** 2 / jnp.sum(kernel**2),
            "alignment": targets
            @ kernel
            @ targets
            / jnp.linalg.norm(centre @ kernel @ centre)
            / (targets @ targets),
        } | {
            f"layer_trace/{name}": t for name, t in zip("buvw", traces / traces.sum(), strict=True)
        }

    def one(key):
        of_params, of_x = jax.random.split(key)
        params, x = draw(of_params), jax.random.normal(of_x, (24, D))
        measured = measure(f, train=(x, y), loss="cross_entropy", instruments="kernel")
        return measured(params), dense(params, x)

    found, right = of_each(one, seed=2)
    for name, numbers in right.items():
        assert covered(found, name, numbers) >= 0.9, name
        assert covered(found, name, 1.3 * numbers) < 1, name
