"""What does not fit is refused before any work, in words that name cheaper choices.

Nothing here is allocated: arrays of many rows are one number, repeated without a copy, and how much
memory is free is said by the tests.
"""

import pathlib
import re
import time
import warnings

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag
from ntkdiag import errors, memory
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
        '; got 8 GB free. Take fewer examples, raise memory=, or make the model with mode="eval", in which '
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
    x = np.ones((20_000_000, 1), "f")
    operator = ntkdiag.NTKOperator(lambda w, x: x @ w, np.ones((1, 1), "f"), x)
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


@pytest.mark.slow
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
        rf"{plan.passes:.3g} times\. With a larger memory= these are fewer\.",
        str(said[0].message),
    )


def test_few_passes_are_not_said():
    f, params, x = _wide()
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


@pytest.mark.slow
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


# Inside a transformation a kernel is one block of somebody's program.


def _linear(w, x):
    return x @ w


def _of_shapes(n, transformed, **options):
    """A kernel of n examples inside a transformation, of which only shapes are made."""
    w = jax.ShapeDtypeStruct((64, 100), jnp.float32)
    x = jax.ShapeDtypeStruct((n, 64), jnp.float32)

    def kernel(w, x):
        return ntkdiag.ntk(_linear, w, x, **options).array

    return jax.eval_shape(transformed(kernel), w, x)


def _grad(kernel):
    return jax.grad(lambda w, x: kernel(w, x).sum())


def _vmap(kernel):
    return lambda w, x: jax.vmap(kernel, in_axes=(0, None))(w[None], x)


@pytest.mark.usefixtures("eight_gigabytes")
@pytest.mark.parametrize("transformed", [jax.jit, _grad, _vmap, jax.checkpoint])
@pytest.mark.parametrize(
    ("n", "reduction"), [(1_000_000, "mean"), (3_000, "full"), (40_000, "diagonal")]
)
def test_shapes_that_cannot_fit_are_refused_inside_a_transformation_as_outside(
    transformed, n, reduction
):
    options = {"reduction": reduction, "check": False}
    with pytest.raises(MemoryBudgetError) as inside:
        _of_shapes(n, transformed, **options)
    x = np.broadcast_to(np.float32(0.0), (n, 64))
    with pytest.raises(MemoryBudgetError) as outside:
        ntkdiag.ntk(_linear, np.zeros((64, 100), np.float32), x, **options)
    assert str(inside.value) == str(outside.value)
    assert "expected a budget of at least" in str(inside.value)


@pytest.mark.usefixtures("eight_gigabytes")
def test_a_block_that_cannot_fit_is_refused_inside_a_transformation_alone():
    """Outside it is computed block by block."""
    shapes = {"w": (64, 512), "v": (512, 100)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}

    def f(params, x):
        return jnp.tanh(x @ params["w"]) @ params["v"]

    def kernel(params, x):
        return ntkdiag.ntk(f, params, x, check=False).array

    many, few = (jax.ShapeDtypeStruct((n, 64), jnp.float32) for n in (30_000, 3_000))
    _refused(
        lambda: jax.eval_shape(jax.jit(kernel), params, many),
        "ntk(f, params, x): expected ",
        " for a kernel inside a transformation, which is one block of its program; got 8 GB free. Call ntk outside of "
        "jax.jit, where it is computed block by block, or take fewer examples.",
    )
    assert ntkdiag.plan(f, params, many).blocks.n_rows > 1
    jax.eval_shape(jax.jit(kernel), params, few)


@pytest.mark.usefixtures("eight_gigabytes")
def test_columns_and_a_joint_batch_count_inside_a_transformation_too():
    w = jax.ShapeDtypeStruct((64, 100), jnp.float32)
    x = jax.ShapeDtypeStruct((1_000, 64), jnp.float32)
    x2 = jax.ShapeDtypeStruct((10_000_000, 64), jnp.float32)

    def between(w, x, x2):
        return ntkdiag.ntk(_linear, w, x, x2, check=False).array

    def joint(w, x):
        return ntkdiag.ntk(_linear, w, x, examples="joint", check=False).array

    _refused(lambda: jax.eval_shape(between, w, x, x2), "expected a budget of at least")
    _refused(
        lambda: jax.eval_shape(joint, w, x),
        " for 100,000 directions of 100,000 outputs; got 8 GB free.",
    )
    few = jax.ShapeDtypeStruct((250, 64), jnp.float32)
    _refused(
        lambda: jax.eval_shape(joint, w, few),
        " for a joint batch, which is differentiated as a whole; got 8 GB",
    )


def test_a_budget_that_was_named_counts_inside_a_transformation():
    _refused(
        lambda: _of_shapes(1_000, jax.jit, memory="1MB", check=False),
        "expected a budget of at least 4.18 MB; got 1 MB. The kernel alone takes 4 MB",
    )
    _of_shapes(100, jax.jit, memory="1MB", check=False)


# Limits of the system.


@pytest.mark.parametrize("group", ["", "/job/7"])
def test_the_limit_of_a_container_is_read(group, monkeypatch):
    folder = f"/sys/fs/cgroup{group}"
    files = {
        "/proc/meminfo": f"MemFree: 1 kB\nMemAvailable: {10**8} kB\n",
        "/proc/self/cgroup": f"0::{group}/\n",
        f"{folder}/memory.max": f"{2 * 10**9}\n",
        f"{folder}/memory.current": f"{15 * 10**8}\n",
        f"{folder}/memory.stat": f"anon 1\ninactive_file {3 * 10**8}\n",
    }

    def read_text(path, *args, **kwargs):
        if str(path) not in files:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return files[str(path)]

    monkeypatch.setattr(pathlib.Path, "read_text", read_text)
    assert memory.host_memory() == 8 * 10**8
    assert memory.budget(None) == 4 * 10**8
    files[f"{folder}/memory.max"] = "max\n"
    assert memory.host_memory() == 10**8 * 1024


@pytest.mark.parametrize(
    ("error", "got"),
    [
        (MemoryError("Unable to allocate 9 TiB"), "Unable to allocate 9 TiB"),
        (MemoryError(), "MemoryError"),
        (
            jax.errors.JaxRuntimeError(
                "RESOURCE_EXHAUSTED: Out of memory allocating 3 bytes.\nAt:"
            ),
            "RESOURCE_EXHAUSTED: Out of memory allocating 3 bytes",
        ),
    ],
)
def test_memory_that_is_refused_in_the_middle_of_a_call_is_an_error_of_ours(error, got):
    @errors.called("ntk(f, params, x)")
    def call():
        raise error

    with pytest.raises(MemoryBudgetError) as caught:
        call()
    assert str(caught.value) == (
        f"ntk(f, params, x): expected memory for all of the call; got {got}. Take fewer examples, or run it where "
        "there is more memory. Where the call has memory=, a smaller budget leaves more for the rest."
    )
    assert caught.value.__cause__ is error


def test_other_errors_of_xla_stay_what_they_are():
    @errors.called("ntk(f, params, x)")
    def call():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        call()
