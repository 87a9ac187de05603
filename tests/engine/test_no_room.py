"""What does not fit is refused before any work, in words that name cheaper choices.

Nothing here is allocated: arrays of many rows are one number, repeated without a copy, and how much
memory is free is said by the tests.
"""

import pathlib
import time

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag
from ntkdiag import errors, memory
from ntkdiag.errors import MemoryBudgetError

VOCABULARY, POSITIONS = 30_000, 16
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


@pytest.mark.usefixtures("eight_gigabytes")
def test_a_large_vocabulary_inside_and_outside_of_jit():
    def kernel(params, tokens):
        return ntkdiag.ntk(language_model, params, tokens, reduction="full", check=False).array

    params = jax.tree.map(lambda shape: jnp.zeros(shape.shape), shapes_of_parameters())
    texts = (
        "expected 1.84 TB for 480,000 directions of 480,000 outputs; got 8 GB free.",
        "reduction=RandomProjections(16), with 16 backward passes instead of 480,000.",
        'reduction="mean", a kernel of n x m numbers',
    )
    _refused(lambda: kernel(params, TOKENS), *texts)
    _refused(lambda: jax.eval_shape(kernel, params, TOKENS), *texts)


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


@pytest.mark.usefixtures("eight_gigabytes")
def test_the_spectrum_of_twenty_thousand_rows():
    kernel = np.broadcast_to(np.float32(1.0), (20_000, 20_000))
    _refused(
        lambda: ntkdiag.spectrum(kernel),
        f"expected {5 * 3.2:.3g} GB for the eigenvalues of a kernel of 20,000 rows; got 8 GB "
        "free. ntkdiag.top_spectrum finds the largest of them by products with an NTKOperator, "
        "without the kernel. Or take fewer examples: a third of the rows takes a ninth of the memory.",
    )


def test_what_is_small_is_computed_without_asking(monkeypatch):
    def ask():
        raise AssertionError("looked up")

    monkeypatch.setattr(memory, "free_memory", ask)
    monkeypatch.setattr(memory, "host_memory", ask)
    f, params, x = cases.mlp()
    ntkdiag.spectrum(ntkdiag.ntk(f, params, x))
    ntkdiag.ntk(f, params, x, examples="joint")


def test_the_limit_of_a_container_is_read(monkeypatch):
    group = "/job/7"
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


def test_memory_that_is_refused_in_the_middle_of_a_call_is_an_error_of_ours():
    got = "RESOURCE_EXHAUSTED: Out of memory allocating 3 bytes"
    error = jax.errors.JaxRuntimeError(f"{got}.\nAt:")

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
