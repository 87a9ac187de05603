"""What does not fit is refused before any work, in words that name cheaper choices.

Nothing here is allocated: arrays of many rows are one number, repeated without a copy, and how much
memory is free is said by the tests.
"""

import re
import time
import warnings

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag
from ntkdiag import memory
from ntkdiag.errors import MemoryBudgetError
from ntkdiag.kernel import RandomProjections

VOCABULARY, POSITIONS = 30_000, 16
TIGHT = 25_000  # bytes, for `_wide`
TOKENS = np.zeros((4, POSITIONS), np.int32)


def language_model(params, tokens):
    """Logits [n t v] of every position."""
    return jnp.tanh(params["embedding"][tokens]) @ params["head"]


def shapes_of_parameters():
    return {
        "embedding": jax.ShapeDtypeStruct((VOCABULARY, 4), jnp.float32),
        "head": jax.ShapeDtypeStruct((4, VOCABULARY), jnp.float32),
    }


@pytest.fixture
def eight_gigabytes(monkeypatch):
    """A machine with 8 GB free."""
    monkeypatch.setattr(memory, "free_memory", lambda: 8 * 10**9)
    monkeypatch.setattr(memory, "host_memory", lambda: 8 * 10**9)


def _refused(call, *texts):
    """The call raises, within a second or two, and says all this."""
    began = time.perf_counter()
    with pytest.raises(MemoryBudgetError) as error:
        call()
    assert time.perf_counter() - began < 20
    for text in texts:
        assert text in str(error.value), str(error.value)


@pytest.mark.parametrize("reduction", ["mean", "trace", "full", "diagonal"])
@pytest.mark.usefixtures("eight_gigabytes")
def test_a_large_vocabulary_inside_and_outside_of_jit(reduction):
    def kernel(params, tokens):
        return ntkdiag.ntk(language_model, params, tokens, reduction=reduction, check=False).array

    params = jax.tree.map(lambda shape: jnp.zeros(shape.shape), shapes_of_parameters())
    texts = (
        "expected 1.84 TB for 480,000 directions of 480,000 outputs; got 8 GB free.",
        "reduction=RandomProjections(16), with 16 backward passes instead of 480,000.",
    )
    _refused(lambda: kernel(params, TOKENS), *texts)
    _refused(lambda: jax.eval_shape(kernel, params, TOKENS), *texts)
    if reduction in ("full", "diagonal"):
        _refused(lambda: kernel(params, TOKENS), 'reduction="mean", a kernel of n x m numbers')


@pytest.mark.usefixtures("eight_gigabytes")
def test_the_plan_of_a_large_vocabulary():
    _refused(
        lambda: ntkdiag.plan(language_model, shapes_of_parameters(), TOKENS),
        "got 4 GB. The kernel alone takes 64 B. Raise memory=, or reduction=RandomProjections(16)",
    )
    # What it advises fits.
    for reduction in (RandomProjections(16), "sum-of-logits"):
        ntkdiag.plan(language_model, shapes_of_parameters(), TOKENS, reduction=reduction)


@pytest.mark.usefixtures("eight_gigabytes")
def test_a_joint_batch():
    f, params, _ = cases.mlp()
    width = params["w"].shape[0]
    x = np.broadcast_to(np.float32(0.0), (20_000, width))
    _refused(
        lambda: ntkdiag.ntk(f, params, x, examples="joint", check=False),
        "expected ",
        '; got 8 GB free. Take fewer examples, raise memory=, or the model in mode="eval", where '
        "examples are independent and are differentiated block by block.",
    )


def test_a_joint_batch_within_a_budget_that_was_named():
    f, params, x = cases.mlp()
    many = np.resize(x, (400, *x.shape[1:]))
    _refused(
        lambda: ntkdiag.ntk(f, params, many, examples="joint", memory="1MB", check=False),
        " for a joint batch, which is differentiated as a whole; got 1 MB free.",
    )
    ntkdiag.ntk(f, params, x, examples="joint", memory="1GB")


@pytest.mark.usefixtures("eight_gigabytes")
@pytest.mark.parametrize("vectors", [False, True])
def test_the_spectrum_of_twenty_thousand_rows(vectors):
    kernel = np.broadcast_to(np.float32(1.0), (20_000, 20_000))
    copies = 8 if vectors else 5
    _refused(
        lambda: ntkdiag.spectrum(kernel, vectors=vectors),
        f"expected {copies * 3.2:.3g} GB for the eigenvalues of a kernel of 20,000 rows; got 8 GB "
        "free. ntkdiag.top_spectrum finds the largest of them by products alone, of an NTKOperator "
        "without the kernel. Or take fewer examples: with a third of the rows it is a ninth.",
    )


@pytest.mark.usefixtures("eight_gigabytes")
@pytest.mark.parametrize(("n", "reduction"), [(20_000, "mean"), (7_000, "full")])
def test_a_comparison_of_twenty_thousand_rows(n, reduction):
    params = {"w": np.ones((2, 3), np.float32)}
    x = np.broadcast_to(np.float32(1.0), (n, 2))
    _refused(
        lambda: ntkdiag.compare(
            params,
            params,
            model=lambda params, x: x @ params["w"],
            train=(x, None),
            reduction=reduction,
        ),
        f"compare(a, b): expected {8 * 5 * 20_000**2 / 1e9 if n == 20_000 else 17.6:.3g} GB for the "
        "eigenvalues of a kernel of ",
    )


@pytest.mark.usefixtures("eight_gigabytes")
def test_the_margin_of_too_many_rows():
    operator = ntkdiag.NTKOperator(lambda w, x: x @ w, np.ones((1, 1), "f"), np.ones((1, 1), "f"))
    operator.shape = (20_000_000, 20_000_000)  # as if there were so many examples
    _refused(
        lambda: ntkdiag.stability_margin(operator, 0.1, loss="mse"),
        "expected 12.8 GB for vectors of 20,000,000 rows; got 8 GB free. Take fewer examples.",
    )


def test_what_is_small_is_computed_without_asking(monkeypatch):
    def ask():
        raise AssertionError("looked up")

    monkeypatch.setattr(memory, "free_memory", ask)
    monkeypatch.setattr(memory, "host_memory", ask)
    f, params, x = cases.mlp()
    ntkdiag.spectrum(ntkdiag.ntk(f, params, x))
    ntkdiag.ntk(f, params, x, examples="joint")


def _wide():
    """A network whose factors are far larger than its kernel."""
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(16, 64)).astype("f"), "v": rng.normal(size=(64, 8)).astype("f")}
    return lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], params, rng.normal(size=(48, 16)).astype("f")


def test_many_passes_are_said_once():
    f, params, x = _wide()
    plan = ntkdiag.plan(f, params, x, memory=TIGHT)
    assert plan.passes > 4
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            ntkdiag.ntk(f, params, x, memory=TIGHT)
    assert len(said) == 1
    assert re.fullmatch(
        rf"ntk\(f, params, x\): within {TIGHT // 1000} kB each example is differentiated "
        rf"{plan.passes:.3g} times\. With a larger memory=, or with spill= and [0-9.]+ kB on disk, "
        r"it is once\.",
        str(said[0].message),
    )


def test_few_passes_are_not_said(tmp_path):
    f, params, x = _wide()
    ntkdiag.ntk(f, params, x, memory=TIGHT, spill=tmp_path)
    ntkdiag.ntk(f, params, x, memory="1GB")


def test_a_plan_draws_no_directions(monkeypatch):
    drawn = []
    draw = RandomProjections.directions

    def counted(self, n_outputs, dtype):
        drawn.append(n_outputs)
        return draw(self, n_outputs, dtype)

    monkeypatch.setattr(RandomProjections, "directions", counted)
    w = jax.ShapeDtypeStruct((4, 1_000_000), jnp.float32)
    x = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    ntkdiag.plan(lambda w, x: jnp.tanh(x @ w), w, x, reduction=RandomProjections(10))
    assert not drawn


def test_directions_of_a_million_outputs_are_drawn_in_a_moment():
    began = time.process_time()
    signs = np.asarray(RandomProjections(10, seed=3).directions(1_000_000, np.float32))
    # Comparing them as rows took 8 s; what remains is drawing them.
    assert time.process_time() - began < 4
    assert signs.shape == (10, 1_000_000)
    assert set(np.unique(signs[:, :1000])) == {-1.0, 1.0}


def test_directions_are_those_they_were():
    """All different up to sign, in the order in which they come from the generator."""
    rng = np.random.default_rng(7)
    expected = []
    while len(expected) < 8:
        for row in rng.choice([-1.0, 1.0], size=(8, 4)):
            row = row * row[0]
            if not any(np.array_equal(row, other) for other in expected):
                expected.append(row)
    signs = RandomProjections(8, seed=7).directions(4, np.float32)
    np.testing.assert_array_equal(signs, expected[:8])
