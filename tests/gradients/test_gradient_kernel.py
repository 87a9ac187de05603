"""The gradient kernel against the stacked gradients of single examples, each taken by itself."""

from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import assert_close

import ntkdiag
from ntkdiag.errors import InvalidInputError
from ntkdiag.losses import MSE, CrossEntropy, Weighted

N, T, V, D = 5, 3, 4, 6
RNG = np.random.default_rng(0)
X, X2 = RNG.normal(size=(N, T, D)), RNG.normal(size=(2, T, D))
TOKENS, TOKENS2 = RNG.integers(0, V, (N, T)), RNG.integers(0, V, (2, T))
PARAMS = {"a": RNG.normal(size=(D, 7)), "b": RNG.normal(size=(7, V))}


def f(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def gradients(of_one, params, *examples):
    """[N P], the gradient of each example's loss, one `jax.grad` after the other."""
    n = jax.tree.leaves(examples)[0].shape[0]
    rows = []
    gradient_of = jax.jit(jax.grad(of_one))
    for i in range(n):
        gradient = gradient_of(params, *jax.tree.map(itemgetter(slice(i, i + 1)), examples))
        rows.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)]))
    return np.stack(rows).astype(np.float64)


def token_loss(p, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(f(p, x), y).mean()


@pytest.mark.usefixtures("x64")
def test_columns_leaves_and_convention():
    rows, columns = (
        gradients(token_loss, PARAMS, X, TOKENS),
        gradients(token_loss, PARAMS, X2, TOKENS2),
    )
    G = ntkdiag.gradient_kernel(
        f, PARAMS, X, TOKENS, loss="cross_entropy", x2=X2, y2=TOKENS2, per_leaf=True
    )
    assert_close(G, rows @ columns.T)
    assert_close(G.leaves["a"], rows[:, : D * 7] @ columns[:, : D * 7].T)
    for kernel in (G, G.leaves["b"]):
        assert (kernel.convention.reduction, kernel.convention.n_outputs) == ("gradient", T * V)
    assert G.convention.probe == ntkdiag.ntk(f, PARAMS, X).convention.probe


@pytest.mark.usefixtures("x64")
def test_preconditioner_is_the_metric():
    P = jax.tree.map(lambda leaf: RNG.uniform(0.5, 2.0, leaf.shape), PARAMS)
    rows = gradients(token_loss, PARAMS, X, TOKENS)
    weights = 1 / np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(P)])
    G = ntkdiag.gradient_kernel(f, PARAMS, X, TOKENS, loss="cross_entropy", preconditioner=P)
    assert_close(G, (rows * weights) @ rows.T)


WEIGHTS = RNG.uniform(size=(N, T)) * (RNG.uniform(size=(N, T)) < 0.7)
IGNORED = np.where(WEIGHTS > 0, TOKENS, -100)
ONE_HOT = np.eye(V)[TOKENS]


def huber(outputs, y):
    return jnp.mean(jnp.sum(jnp.sqrt(1 + (outputs - y["of"]) ** 2), axis=(1, 2)))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_mean_of_the_kernel_is_the_squared_gradient_of_the_loss():
    """Weights, masks, denominators and losses of one's own: 1^T G 1 / N^2 = ||grad L||^2."""
    for y, loss in [
        (Weighted(TOKENS, WEIGHTS), CrossEntropy()),
        (IGNORED, CrossEntropy(ignore=-100)),
        (TOKENS, CrossEntropy(denominator=N)),
        (ONE_HOT, MSE(denominator=N * V)),
        (Weighted(ONE_HOT, WEIGHTS[:, 0]), "mse"),
        (TOKENS > 1, "mse"),
        ({"of": ONE_HOT}, huber),
    ]:
        net = (
            f if not isinstance(y, np.ndarray) or y.dtype != bool else lambda p, x: f(p, x)[..., 0]
        )
        named = ntkdiag.losses.loss_argument.as_loss(loss)
        read = named.read(y, jax.eval_shape(net, PARAMS, X).shape)
        whole = lambda p, named=named, net=net, read=read: named(net(p, X), read)
        gradient = jax.grad(whole)(PARAMS)
        squared = sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient))
        G = ntkdiag.gradient_kernel(net, PARAMS, X, y, loss=loss)
        np.testing.assert_allclose(np.mean(G), squared, rtol=1e-10)
        # And every entry is a product of gradients: row n of x alone, with its weight.
        g, examples = ntkdiag.example_losses(net, PARAMS, X, y, loss=loss)
        rows = gradients(lambda p, *one, g=g: g(p, one)[0], PARAMS, *examples)
        assert_close(G, rows @ rows.T)


def test_plan_stays_below_all_gradients_at_once():
    """64 examples of 1.6 million parameters: in a quarter of the memory of their gradients."""
    params = {"a": jnp.zeros((512, 2048)), "b": jnp.zeros((2048, 256))}
    x, y = np.zeros((64, 128, 512), np.float32), np.zeros((64, 128), int)
    g, examples = ntkdiag.example_losses(f, params, x, y, loss="cross_entropy")
    of_all_gradients = 64 * 4 * (512 * 2048 + 2048 * 256)
    plan = ntkdiag.plan(g, params, examples, memory=of_all_gradients // 4)
    assert plan.directions == 1  # one backward pass, not 128 x 256 of them
    assert plan.peak_bytes < of_all_gradients / 4


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_inside_jit_and_grad():
    """The mean of G is ||grad L||^2 there too, and so is its derivative."""

    def mean_of_kernel(p):
        return ntkdiag.gradient_kernel(f, p, X, TOKENS, loss="cross_entropy").array.mean()

    def squared_gradient(p):
        gradient = jax.grad(token_loss)(p, X, TOKENS)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))

    got = jax.jit(jax.value_and_grad(mean_of_kernel))(PARAMS)
    want = jax.value_and_grad(squared_gradient)(PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8), got, want)


@pytest.mark.usefixtures("wrong_types")
def test_messages():
    for changes, message in [
        ({"loss": None}, "the loss that is trained: the gradient of an example depends on it"),
        ({"x2": X2}, "expected x2 and y2 together; got x2 alone"),
        ({"y": TOKENS[:2]}, r"`y` of shape \(5, 3, 4\), or integer class numbers \(5, 3\)"),
        (
            {"y": {"of": ONE_HOT}, "loss": lambda o, y: huber(o, y) / y["of"][:, 0, 0].sum()},
            "a loss that is the mean, or the sum, over examples of what it is for each alone",
        ),
    ]:
        arguments = {
            "f": f,
            "params": PARAMS,
            "x": X,
            "y": TOKENS,
            "loss": "cross_entropy",
        } | changes
        with pytest.raises(InvalidInputError, match=message):
            ntkdiag.gradient_kernel(**arguments)
