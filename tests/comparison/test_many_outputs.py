"""Models of many outputs, such as language models: a sketch of them in the place of a pass for each.

`watch`, `compare` and `track` choose by one rule.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import ProbeLayout, automatic_of_held_out, automatic_of_probe

import ntkdiag
from ntkdiag import errors
from ntkdiag.analysis import alignment
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


RULE = [
    (32, 64, "full"),  # 2048 rows
    (33, 64, "mean"),
    (2048, 1, "full"),
    (2049, 1, "mean"),
    (32, 65, SKETCH),
    (32, 160_000, SKETCH),
    (20, 100, "full"),
]


@pytest.mark.smoke
def test_one_rule_in_watch_compare_and_track():
    for n_examples, n_outputs, chosen in RULE:
        assert automatic_of_probe(n_examples, n_outputs) == chosen
        layout = ProbeLayout.of((n_examples, n_outputs), "auto", np.float32)
        assert layout.reduction_for_ntk == chosen


def test_kernels_of_held_out_examples():
    for asked, n_outputs, chosen in (
        ("auto", 1, "full"),
        ("auto", 64, "mean"),
        ("auto", 65, SKETCH),
        ("trace", 65, "trace"),
        (RandomProjections(3), 65, RandomProjections(3)),
    ):
        assert automatic_of_held_out(asked, n_outputs) == chosen


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
    np.testing.assert_allclose(np.trace(found.b.kernel.matrix), result.rows[1]["trace"], rtol=1e-5)
    note = next(note for note in found.notes if note.startswith("Kernels are reduced"))
    assert 'RandomProjections(k=8, seed=0), which reduction="auto" chose for both sides' in note


@pytest.mark.slow
def test_the_margin_beside_a_sketch_is_that_of_the_full_kernel():
    few = tuple(part[:5] for part in tokens(0))  # 360 rows
    options = {**OPTIONS, "train": few, "descent": 0.1}
    sketched, full = (
        ntkdiag.compare(params_at(0), params_at(3), reduction=reduction, **options)
        for reduction in (RandomProjections(16), "full")
    )
    np.testing.assert_allclose(sketched.b.margin, full.b.margin, rtol=0.02)
    shares = [leaf.share_b for leaf in sketched.movement]
    np.testing.assert_allclose(shares, [leaf.share_b for leaf in full.movement], atol=0.1)


def test_more_directions_than_there_are_are_refused():
    def two_outputs(params, x):
        return x @ params

    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    a, b = np.ones((3, 2), np.float32), np.full((3, 2), 2, np.float32)
    options = {"model": two_outputs, "train": (x, None)}
    with pytest.raises(errors.InvalidInputError, match="2 <= k <= 2\\^1"):
        ntkdiag.compare(a, b, reduction=RandomProjections(3), **options)
    with pytest.raises(errors.InvalidInputError, match="or RandomProjections"):
        ntkdiag.track({0: a, 1: b}, reduction="sketch", **options)


def test_labels_of_many_outputs_need_no_matrix_of_outputs_by_outputs():
    # 100,000 outputs: their products would be 40 GB.
    n, n_outputs = 4, 100_000
    rng = np.random.default_rng(0)
    labels = np.zeros((n, n_outputs), np.float32)
    labels[np.arange(n), [5, 5, 70_000, 9]] = 1.0
    rows = rng.normal(size=(n, 3))
    kernel = rows @ rows.T
    centring = np.eye(n) - 1 / n
    target = centring @ labels.astype(np.float64) @ labels.T @ centring
    centred = centring @ kernel @ centring
    cosine = np.sum(centred * target) / np.linalg.norm(centred) / np.linalg.norm(target)
    found = alignment(kernel, labels)
    np.testing.assert_allclose(float(found), cosine, rtol=1e-5)
