"""Influences without the kernel of the training examples, beside those that form it."""

import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest
from test_influence import PARAMS, RIDGE, RNG, C, N, X, Y, f, influences

import ntkdiag
from ntkdiag import matrix_free
from ntkdiag.errors import InvalidInputError, MemoryBudgetError
from ntkdiag.gradients import leaving_out
from ntkdiag.losses import Weighted

EXACT = matrix_free.CG(tolerance=1e-12)


def huber(outputs, y):
    return jnp.mean(jnp.sum(jnp.sqrt(1 + (outputs - y) ** 2), axis=1))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("loss", "y", "y_test"),
    [
        ("mse", Y, None),
        ("cross_entropy", Y, None),
        pytest.param("sigmoid_cross_entropy", Y, None, marks=pytest.mark.long),
        ("cross_entropy", Weighted(Y, RNG.uniform(0.5, 2.0, N)), None),
        pytest.param(huber, np.eye(C)[Y], np.eye(C)[Y[:4]], marks=pytest.mark.long),
    ],
)
def test_equal_to_those_that_form_the_kernel(loss, y, y_test):
    changes = {"loss": loss, "train": (X, y)}
    if y_test is not None:
        changes["test"] = (X[:4], y_test)
    formed, products = influences(**changes), influences(**changes, solver=EXACT)
    for name in ("prediction", "loss", "outputs"):
        ours, theirs = getattr(products, name), getattr(formed, name)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * np.abs(theirs).max())
    np.testing.assert_allclose(products.e1, formed.e1, rtol=1e-6)
    assert products.residual < 1e-6
    assert formed.residual == 0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("solver", [None, EXACT])
def test_of_some_examples_alone(solver):
    everyone, some = influences(), influences(left_out=[7, 2], solver=solver)
    np.testing.assert_array_equal(some.left_out, [7, 2])
    np.testing.assert_allclose(some.prediction, everyone.prediction[[7, 2]], rtol=1e-6, atol=1e-9)
    harmful = everyone.most_harmful(N)
    np.testing.assert_array_equal(some.most_harmful(), [i for i in harmful if i in (7, 2)])


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_in_float32(loss):
    formed, products = influences(loss=loss), influences(loss=loss, solver=matrix_free.CG())
    size = np.abs(formed.prediction).max()
    np.testing.assert_allclose(products.prediction, formed.prediction, atol=1e-4 * size)
    assert products.residual < 1e-4


def test_batches_change_nothing():
    one = influences(solver=matrix_free.CG(), left_out=[3])
    several = influences(solver=matrix_free.CG(), left_out=[3], batch_size=4)
    np.testing.assert_allclose(one.prediction, several.prediction, rtol=1e-3, atol=1e-5)


def test_where_the_kernel_does_not_fit(monkeypatch):
    """4,000 examples of 10 outputs, a kernel of 6 GB: refused, with the way out, which is taken."""
    monkeypatch.setattr(leaving_out, "host_memory", lambda: 10**9)
    n, rng = 4000, np.random.default_rng(0)
    x, y = rng.normal(size=(n, 20)).astype(np.float32), rng.integers(0, 10, n)
    params = {"a": jnp.asarray(rng.normal(size=(20, 10)), jnp.float32)}

    def linear(params, x):
        return x @ params["a"]

    arguments = (linear, params, (x, y), (x[:3], y[:3]))
    settings = {"loss": "mse", "ridge": 10.0, "left_out": [0, 5]}
    with pytest.raises(
        MemoryBudgetError, match=r"kernel of 40000 rows.*Pass solver=ntkdiag\.matrix_free\.CG"
    ):
        ntkdiag.influence(*arguments, **settings)
    tracemalloc.start()
    found = ntkdiag.influence(*arguments, **settings, solver=matrix_free.CG())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6
    # The fitted linear model by itself, as a ridge regression in its 20 inputs.
    shift = np.eye(10)[y] - x @ np.asarray(params["a"])
    gram = x.T @ x + 10.0 * np.eye(20)
    fitted = np.linalg.solve(gram, x.T @ shift)
    kept = np.arange(n) != 5
    without = np.linalg.solve(gram - np.outer(x[5], x[5]), x[kept].T @ shift[kept])
    want = x[:3] @ (without - fitted)
    np.testing.assert_allclose(found.prediction[1], want, atol=1e-3 * np.abs(want).max())


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"solver": matrix_free.CG("parameters")}, 'solver=CG.., with space="function"'),
        ({"solver": matrix_free.CG(rank=3)}, "without a rank"),
        ({"solver": "cg"}, 'solver=CG.., with space="function"'),
        ({"solver": matrix_free.CG(), "ridge": 1e-12}, "above the resolution of the kernel"),
        ({"left_out": [N]}, "numbers of training examples, 0 to 9"),
        ({"left_out": []}, "numbers of training examples, 0 to 9"),
        ({"left_out": [True]}, "numbers of training examples, 0 to 9"),
    ],
)
def test_messages(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        influences(**changes)


@pytest.mark.usefixtures("x64")
def test_what_does_not_arrive_is_nan():
    """A loss that is not convex has no minimum that Newton's method finds."""

    def hill(outputs, y):
        return -jnp.mean(jnp.sum((outputs - y) ** 4, axis=1))

    y = np.eye(C)[Y]
    found = ntkdiag.influence(
        f, PARAMS, (X, y), (X[:2], y[:2]), loss=hill, ridge=RIDGE, solver=matrix_free.CG()
    )
    assert np.isnan(found.prediction).all()
