"""The health of a kernel, sound and broken."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import Kernel
from ntkdiag.analysis import health
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel import Convention


def test_sound_kernel():
    found = health(np.diag([2.0, 1.0]))
    assert found.sound
    assert (found.nonfinite, found.negative, found.unresolved, found.smallest, found.zero_rows) == (
        0,
        0,
        0,
        1.0,
        0.0,
    )
    assert found.mean_mode_share == pytest.approx(0.5)
    assert repr(found) == (
        "Health(sound: asymmetry 0, 0 negative and 0 unresolved of 2 eigenvalues, zero rows 0.00%, mean mode 50.00%)"
    )


def test_mean_mode_share_of_a_full_kernel_sums_equal_outputs():
    assert health(np.ones((4, 4))).mean_mode_share == pytest.approx(1.0)
    assert health(
        np.kron(np.ones((4, 4)), np.eye(3)).reshape(4, 3, 4, 3)
    ).mean_mode_share == pytest.approx(1.0)
    assert health(np.eye(4) - 0.25).mean_mode_share == pytest.approx(0.0, abs=1e-15)


def test_broken_kernels_are_reported_not_refused():
    assert health(np.diag([1.0, 0.0])).zero_rows == 0.5
    assert health(np.diag([1.0, 0.0])).unresolved == 1
    indefinite = health(np.diag([1.0, -1.0]))
    assert indefinite.negative == 1
    assert not indefinite.sound
    skewed = health(np.array([[1.0, 0.5], [0.0, 1.0]]))
    assert skewed.asymmetry == pytest.approx(np.sqrt(0.5) / 1.5)
    assert not skewed.sound
    broken = health(np.array([[1.0, np.nan], [np.nan, 1.0]]))
    assert broken.nonfinite == 2
    assert not broken.sound
    assert repr(broken) == "Health(unsound: 2 NaN or Inf of 4 entries)"


def test_dead_kernel():
    dead = health(np.zeros((3, 3)))
    assert (dead.zero_rows, dead.unresolved, dead.smallest) == (1.0, 3, np.inf)
    assert dead.constant
    assert not dead.sound
    assert repr(dead).startswith("Health(DEAD, no parameter moves an output: ")
    assert repr(dead).endswith("zero rows 100.00%, mean mode undefined)")


def test_the_kernel_of_a_last_bias_alone_is_dead():
    """Behind dead units only the last bias moves the outputs: those of all examples alike."""
    of_the_bias = np.kron(np.ones((4, 4)), np.eye(3)).reshape(4, 3, 4, 3).astype(np.float32)
    dead = health(of_the_bias)
    assert dead.constant
    assert not dead.sound
    assert repr(dead).startswith("Health(DEAD, no parameter tells two examples apart: ")
    alive = of_the_bias.copy()
    alive[0, 0, 0, 0] += 1e-3
    assert health(alive).sound
    assert repr(health(alive)).startswith("Health(sound: ")


def test_a_single_example_has_nothing_to_be_constant_over():
    assert health(np.ones((1, 1))).sound
    assert not health(np.zeros((1, 1))).sound


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_jit_agrees():
    rows = np.random.default_rng(0).normal(size=(5, 3))
    matrix = jnp.asarray(rows @ rows.T)
    eager, traced = health(matrix), jax.jit(health)(matrix)
    assert traced.negative == eager.negative == 0
    assert traced.unresolved == eager.unresolved == 2
    for name in ("asymmetry", "smallest", "mean_mode_share", "zero_rows"):
        np.testing.assert_allclose(getattr(traced, name), getattr(eager, name), atol=1e-12)
    assert repr(jax.vmap(health)(jnp.stack([matrix, matrix]))) == "Health(traced or batched)"


def test_cross_kernels_are_refused():
    message = (
        "health(kernel): expected `kernel` of a set of examples with itself; got shape (2, 3). "
        "Compute it as `ntk(f, params, x)`, without `x2`."
    )
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        health(Kernel(np.ones((2, 3)), Convention(), symmetric=False))
