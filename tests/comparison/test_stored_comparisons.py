"""Comparisons as rows of a run directory."""

import numpy as np
import pytest
from internals import RunWriter

import ntkdiag
from ntkdiag import errors

RNG = np.random.default_rng(0)
TRAIN = RNG.normal(size=(6, 3)).astype(np.float32), np.arange(6) % 2
START = RNG.normal(size=(3, 2)).astype(np.float32)


def f(params, x):
    return np.tanh(1.0) * x @ params["w"]


def compared(step, train=TRAIN):
    return ntkdiag.compare(
        {"w": START},
        {"w": START + 0.1 * step},
        model=f,
        train=train,
        loss="mse",
        descent=0.1,
        names=("start", f"step {step}"),
    )


@pytest.fixture(scope="module")
def comparisons():
    return [compared(1), compared(2)]


@pytest.mark.long
def test_each_comparison_is_a_row(comparisons, tmp_path):
    with RunWriter.open(tmp_path / "run", {"source": "track"}) as writer:  # another stream
        writer.write(0, {"trace": 1.0}, {})
        for comparison in comparisons:
            assert comparison.save(tmp_path / "run") == tmp_path / "run"
    run = ntkdiag.open_run(tmp_path / "run")
    assert run.names == ["compare", "track"]
    assert run.steps("compare") == [0, 1]
    for row, comparison in zip(run.rows("compare"), comparisons, strict=True):
        expected = comparison.to_dict()
        assert (row["a_label"], row["b_label"]) == ("start", expected["b"]["label"])
        assert row["a_trace"] == expected["a"]["trace"]
        assert row["b_margin"] == expected["b"]["margin"]
        assert row["drift_relative"] == expected["drift"]["relative"]
        assert row["verdict_name"] == comparison.verdict.name
        assert np.isnan(row["b_step"])  # values in memory have none
        moved = [leaf["moved"] for leaf in expected["movement"]]
        assert row["movement_moved"] == moved
        assert row["notes"] == list(comparison.notes)
    spectra = run.arrays("b_eigenvalues", name="compare")
    for spectrum, comparison in zip(spectra, comparisons, strict=True):
        np.testing.assert_array_equal(spectrum, comparison.b.spectrum.eigenvalues)
    record = run.record("compare")
    assert record["source"] == "compare"
    assert record["train_sha256"] == comparisons[0].facts["train_sha256"]
    assert any(line.startswith("jax ") for line in record["versions"])


def test_as_a_dataset(comparisons, tmp_path):
    pytest.importorskip("xarray")
    for comparison in comparisons:
        comparison.save(tmp_path)  # a folder that is there
    dataset = ntkdiag.open_run(tmp_path).to_xarray()
    assert dataset["a_eigenvalues"].dims == ("step", "mode")
    moved = dataset["movement_moved"].sel(leaf="w")
    np.testing.assert_allclose(moved, [0.1 * np.sqrt(6), 0.2 * np.sqrt(6)], rtol=1e-5)


def test_rows_are_of_one_probe(comparisons, tmp_path):
    comparisons[0].save(tmp_path)
    x, y = TRAIN
    with pytest.raises(errors.InvalidInputError, match=r"Comparison\.save.* got train_sha256="):
        compared(1, (x + 1, y)).save(tmp_path)
    assert ntkdiag.open_run(tmp_path).steps() == [0]


def test_what_is_a_file_and_what_a_folder(comparisons, tmp_path):
    (comparison, _) = comparisons
    comparison.save(tmp_path / "a.json")
    assert (tmp_path / "a.json").is_file()
    comparison.save(tmp_path / "new" / "run")
    assert ntkdiag.open_run(tmp_path / "new" / "run").names == ["compare"]
    # A new name with an ending may be a mistake for a file; a folder that is there is none.
    with pytest.raises(errors.InvalidInputError, match=r"got the ending '\.1'"):
        comparison.save(tmp_path / "rate_0.1")
    (tmp_path / "rate_0.1").mkdir()
    comparison.save(tmp_path / "rate_0.1")
    (tmp_path / "plain").write_text("")
    with pytest.raises(errors.InvalidInputError, match="got the ending ''"):
        comparison.save(tmp_path / "plain")
    with pytest.raises(errors.InvalidInputError) as caught:
        comparison.save(tmp_path / "plain" / "run")
    assert str(caught.value) == (
        f"Comparison.save({str(tmp_path / 'plain' / 'run')!r}): expected a folder that can be "
        f"written to, or made; got {tmp_path / 'plain'}, which cannot. Choose another path."
    )
