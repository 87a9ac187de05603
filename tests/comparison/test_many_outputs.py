"""Models of many outputs, such as language models: a sketch of them in the place of a pass for each.

`watch`, `compare` and `track` choose by one rule.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag
from ntkdiag.kernel import RandomProjections

EXAMPLES, LENGTH, VOCABULARY = 30, 6, 12  # 72 outputs of an example, 2160 rows
SKETCH = RandomProjections(8)


def language_model(params, tokens):
    """Each position says something of the mean of those up to it."""
    embedded = params["embedding"][tokens]  # [n t d]
    seen = jnp.cumsum(embedded, 1) / jnp.arange(1, tokens.shape[1] + 1)[:, None]
    return jnp.tanh(seen @ params["mix"]) @ params["out"]


def params_at(step):
    rng = np.random.default_rng(0)
    shapes = {"embedding": (VOCABULARY, 8), "mix": (8, 8), "out": (8, VOCABULARY)}
    start = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    moved = np.random.default_rng(step)
    return jax.tree.map(
        lambda leaf: leaf + 0.1 * step * moved.normal(size=leaf.shape).astype(np.float32), start
    )


def tokens(seed):
    drawn = np.random.default_rng(seed).integers(0, VOCABULARY, size=(EXAMPLES, LENGTH + 1))
    return drawn[:, :-1], drawn[:, 1:]


OPTIONS = {"model": language_model, "train": tokens(0), "loss": "cross_entropy"}


@pytest.mark.slow
def test_kernels_of_track_and_compare_are_the_sketch_that_ntk_computes(tmp_path):
    run = {step: params_at(step) for step in (0, 3)}
    result = ntkdiag.track(run, held_out=tokens(1), out=tmp_path, **OPTIONS)
    record = ntkdiag.open_run(tmp_path).record("track")
    assert record["reduction"] == "RandomProjections(k=8, seed=0)"
    kernel = ntkdiag.ntk(
        language_model, params_at(3), tokens(0)[0], reduction=SKETCH, per_leaf=True
    )
    np.testing.assert_allclose(result.rows[1]["trace"], np.trace(kernel.matrix), rtol=1e-5)
    traces = [np.trace(part.array) for part in kernel.leaves.values()]
    np.testing.assert_allclose(result.rows[1]["leaf_shares"], traces / np.sum(traces), rtol=1e-4)
    assert np.isfinite([row["held_out_alignment_above"] for row in result.rows]).all()
    found = ntkdiag.compare(run[0], run[3], **OPTIONS)
    np.testing.assert_allclose(
        np.trace(found.sides[1].kernel.matrix), result.rows[1]["trace"], rtol=1e-5
    )
    note = next(note for note in found.notes if note.startswith("Kernels are reduced"))
    assert "outputs and positions (RandomProjections(k=8, seed=0))" in note
