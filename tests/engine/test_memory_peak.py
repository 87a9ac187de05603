"""The peak of memory that a plan promises, against programs that XLA compiled and against a process."""

import itertools
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from internals import Gram, Outer, Reduction, Tile, copies_at_once, edges_at_once, joined

import ntkdiag

ROOT = pathlib.Path(__file__).parents[2]
C, INPUTS, OUTPUTS = 10, 300, 300
# 784 x 2800 x 2800 x 10: 10 million parameters.
WIDTHS = (784, 2800, 2800, 10)


def _factor(n):
    """The shapes of the factor of a dense layer for n examples: a [n b t i], c [n o b t d]."""
    a = jax.ShapeDtypeStruct((n, 1, 1, INPUTS), jnp.float32)
    c = jax.ShapeDtypeStruct((n, C, 1, 1, OUTPUTS), jnp.float32)
    return Outer(a, c, False)


@pytest.mark.parametrize(
    ("n", "step", "n_strips"),
    [(96, 96, 1), (690, 69, 2), pytest.param(1024, 69, 4, marks=pytest.mark.slow)],
)
def test_copies_of_factors_are_those_of_the_compiled_program(n, step, n_strips):
    tile = Tile.of(Reduction.of("trace", C), n, n)
    gram = Gram("trace", "highest", ((0,),), 1)
    blocks = [[_factor(step)] for _ in range(-(-n // step))]  # the last one is filled up

    def contracted(blocks):
        return gram.symmetric(joined(blocks, n), tile)

    # Compiled from shapes: nothing of it is allocated.
    analysis = jax.jit(contracted).lower(blocks).compile().memory_analysis()
    factors = 4 * n * (INPUTS + C * OUTPUTS)
    copies = copies_at_once(tile) + (len(blocks) > 1)
    kernels = 4 * 4 * n * n
    assert len(edges_at_once(tile)) - 1 == n_strips
    assert analysis.temp_size_in_bytes <= 1.02 * copies * factors + kernels


def _shapes(n):
    params = []
    for rows, columns in itertools.pairwise(WIDTHS):
        weight = jax.ShapeDtypeStruct((rows, columns), jnp.float32)
        params.append((weight, jax.ShapeDtypeStruct((columns,), jnp.float32)))
    return params, jax.ShapeDtypeStruct((n, WIDTHS[0]), jnp.float32)


def _mlp(params, x):
    for weight, bias in params[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = params[-1]
    return x @ weight + bias


def test_ten_million_parameters_within_a_gigabyte_are_planned_in_tiles():
    """In one tile strips of the triangle take three copies of the factors: 1.2 GB were seen."""
    plan = ntkdiag.plan(_mlp, *_shapes(1024), reduction="trace", memory="1GB")
    assert not plan.blocks.one_tile
    assert plan.passes == 1.0
    assert plan.peak_bytes <= 850e6  # room for compiling is left
    assert plan.budget_bytes == 10**9
    in_one = ntkdiag.plan(_mlp, *_shapes(1024), reduction="trace", memory="4GB")
    assert in_one.blocks.one_tile
    assert in_one.peak_bytes > 1e9


_PROCESS = """
import numpy as np, jax, ntkdiag
from benchmarks.memory import peak
from test_memory_peak import _mlp, _shapes
jax.config.update("jax_enable_compilation_cache", False)
rng = np.random.default_rng(0)
params, x = jax.tree.map(lambda s: rng.normal(size=s.shape).astype("f") / 30, _shapes(1024))
params = jax.tree.map(jax.numpy.asarray, params)
print(peak(lambda: ntkdiag.ntk(_mlp, params, x, reduction="trace", memory="1GB").array))
"""


@pytest.mark.slow
def test_the_first_call_stays_within_a_gigabyte():
    """Compiling included, in a process of its own."""
    folders = [str(ROOT), str(ROOT / "tests/support"), str(pathlib.Path(__file__).parent)]
    paths = f"import sys; sys.path[:0] = {folders}\n"
    ran = subprocess.run(
        [sys.executable, "-c", paths + _PROCESS], capture_output=True, text=True, check=True
    )
    measured = ran.stdout.split()[-1]
    if measured == "None":
        pytest.skip("no /proc here")
    assert 1e8 < int(measured) <= 1e9
