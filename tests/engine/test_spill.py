"""Factors that wait in a file: the same kernel, every example differentiated once, and nothing left behind."""

import os
import shutil
from types import SimpleNamespace

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import Dense, Differentiation, Outer, Rows, Spill, Tied, opened

import ntkdiag
from ntkdiag.errors import InvalidInputError

F, PARAMS, _ = cases.mlp()
X = cases.drawn(23, 5, seed=3)
BUDGET = 7_000


@pytest.fixture
def differentiated(monkeypatch):
    """How many examples are differentiated."""
    counts = []
    block = Differentiation.block

    def counted(self, start, size):
        counts.append(size)
        return block(self, start, size)

    monkeypatch.setattr(Differentiation, "block", counted)
    return counts


@pytest.mark.parametrize("columns", [None, 9], ids=["x2=None", "x2"])
@pytest.mark.parametrize("outputs", ["trace", "full", "diagonal"])
def test_the_same_kernel_of_examples_differentiated_once(
    tmp_path, differentiated, outputs, columns
):
    x2 = None if columns is None else X[:columns]
    memory = BUDGET - 2_500 + np.asarray(ntkdiag.ntk(F, PARAMS, X, x2, reduction=outputs)).nbytes
    again, once = (
        ntkdiag.plan(F, PARAMS, X, x2, reduction=outputs, memory=memory, spill=s)
        for s in (None, tmp_path)
    )
    assert again.passes > 1 == once.passes
    assert again.flops > once.flops
    without = ntkdiag.ntk(F, PARAMS, X, x2, reduction=outputs, memory=memory)
    differentiated.clear()
    spilled = ntkdiag.ntk(F, PARAMS, X, x2, reduction=outputs, memory=memory, spill=tmp_path)
    np.testing.assert_array_equal(np.asarray(spilled), np.asarray(without))
    blocks = once.blocks
    assert sum(differentiated) == blocks.size * (blocks.n_rows + blocks.n_columns)
    assert not list(tmp_path.iterdir())


def test_the_plan_says_what_a_file_would_do_and_how_large_it_is(tmp_path, monkeypatch):
    written = []
    write = Spill.write

    def counted(self, key, tree):
        write(self, key, tree)
        written.append(self._file.tell())

    monkeypatch.setattr(Spill, "write", counted)
    again, once = (ntkdiag.plan(F, PARAMS, X, memory=BUDGET, spill=s) for s in (None, tmp_path))
    assert f"each example differentiated {again.passes:.3g} times (once with spill= and " in str(
        again
    )
    assert "each example differentiated 1 times with " in str(once)
    ntkdiag.ntk(F, PARAMS, X, memory=BUDGET, spill=tmp_path)
    assert written[-1] == pytest.approx(once.again_bytes, rel=0.2)
    assert once.again_bytes == again.again_bytes


def test_nothing_is_written_where_everything_fits(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", None)  # not even looked at
    ntkdiag.ntk(F, PARAMS, X, spill=tmp_path)
    assert "once" not in str(ntkdiag.plan(F, PARAMS, X))


def test_nothing_stays_when_it_fails(tmp_path, monkeypatch):
    def fail(self, key):
        raise OSError("the disk is gone")

    monkeypatch.setattr(Spill, "read", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        ntkdiag.ntk(F, PARAMS, X, memory=BUDGET, spill=tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_such_directory(tmp_path, differentiated):
    for function in (ntkdiag.ntk, ntkdiag.plan):
        with pytest.raises(
            InvalidInputError,
            match=r"spill='.*nowhere'\): expected a directory that can be written to",
        ):
            function(F, PARAMS, X, spill=tmp_path / "nowhere")
    assert not differentiated


def test_no_room(tmp_path, monkeypatch, differentiated):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(
        InvalidInputError,
        match=r"expected a directory with .* kB free; got 1 kB free. Name another",
    ):
        ntkdiag.ntk(F, PARAMS, X, memory=BUDGET, spill=tmp_path)
    assert not differentiated


def test_every_factor_comes_back_as_it_was(tmp_path):
    draw = lambda *shape: jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    rows = Rows(jnp.arange(6).reshape(2, 3), draw(4, 3, 5), 7)
    factors = [
        Dense(draw(2, 4, 9).astype(jnp.bfloat16)),
        Dense(draw(2, 4, 0)),
        Tied(rows, Outer(draw(2, 1, 3, 5), draw(2, 4, 1, 3, 7), has_bias=True)),
    ]
    with opened(tmp_path, 0) as file:
        for key in (3, 8):
            file.write(key, jax.tree.map(lambda v, key=key: v * key, factors))
        for key in (8, 3, 8):
            back = file.read(key)
            expected = jax.tree.map(lambda v, key=key: v * key, factors)
            assert jax.tree.structure(back) == jax.tree.structure(expected)
            for got, wanted in zip(jax.tree.leaves(back), jax.tree.leaves(expected), strict=True):
                assert got.dtype == wanted.dtype
                np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))
    assert 3 in file
    assert 4 not in file


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_disk_that_is_full_by_then(tmp_path, monkeypatch):
    """Somebody else filled it since the kernel was planned; the device takes no byte."""
    opened_files = []

    def full(**options):
        opened_files.append(open("/dev/full", "r+b"))  # noqa: SIM115
        return opened_files[-1]

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    message = (
        r"ntk\(f, params, x, spill=\.\.\.\): expected a disk that takes the factors; got No space left on device "
        r"after .*Nothing is left there\. Name another directory"
    )
    with pytest.raises(InvalidInputError, match=message):
        ntkdiag.ntk(F, PARAMS, X, memory=BUDGET, spill=tmp_path)
    assert opened_files[0].closed
    assert not list(tmp_path.iterdir())
