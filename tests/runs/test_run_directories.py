"""Run directories: what is written is what is read, resumed and refused, with and without ntkdiag."""

import json
import signal
import subprocess
import sys
import zlib

import numpy as np
import pytest
from internals import RunWriter

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import RunLog

RECORD = {
    "reduction": "full",
    "probe": {"sha256": "ab12", "examples": 4},
    "dims": {"kernel": ["example", "example_2"], "eigenvalues": ["mode"], "share": ["layer"]},
    "coordinates": {"layer": ["Dense_0", "Dense_1"]},
    "versions": {"jax": "0.10.2"},
}


def arrays_of(step):
    draw = np.random.default_rng(step)
    return {
        "kernel": draw.normal(size=(4, 4)).astype(np.float32),
        "eigenvalues": draw.normal(size=4),
        "share": draw.random(2),
    }


def written(root, steps=(0, 10, 100), record=RECORD):
    with RunWriter(root, record) as writer:
        for step in steps:
            writer.write(step, {"loss": 1 / (1 + step), "rank": step + 1}, arrays_of(step))
    return root


def refused(call, *args, **kwargs):
    """The message of the error that a call raises."""
    with pytest.raises(errors.NtkdiagError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


@pytest.mark.smoke
def test_round_trip(tmp_path):
    run = ntkdiag.open_run(written(tmp_path / "deep" / "run"))
    assert run.names == ["track"]
    assert run.record() == RECORD
    assert run.steps() == [0, 10, 100]
    assert run.rows()[1] == {"step": 10, "loss": 1 / 11, "rank": 11}
    for step in (0, 10, 100):
        for key, array in arrays_of(step).items():
            read = run.array(step, key)
            assert read.dtype == array.dtype
            np.testing.assert_array_equal(read, array)
    kernels = run.to_xarray()["kernel"]
    np.testing.assert_array_equal(kernels, np.stack([arrays_of(s)["kernel"] for s in (0, 10, 100)]))
    assert repr(run) == f"Run({str(tmp_path / 'deep' / 'run')!r}: track 3 steps, 0 to 100)"


def test_other_byte_order_and_what_is_not_finite(tmp_path):
    big = np.array([1.5, np.nan, -np.inf, -0.0], ">f8")
    with RunWriter(tmp_path, {"threshold": float("inf")}) as writer:
        row = {"loss": float("nan"), "margin": float("inf"), "values": [1.0, float("nan")]}
        row["shares"] = {"Dense_0": float("nan"), "Dense_1": (0.5, 0.25)}
        writer.write(0, {**row, "loss32": np.float32(2.5), "n": np.int64(3)}, {"big": big})
        in_memory = writer.finished[0]
    run = ntkdiag.open_run(tmp_path)
    assert run.array(0, "big").tobytes() == big.astype("<f8").tobytes()
    for row in (run.rows()[0], in_memory):
        assert np.isnan([row["loss"], row["margin"], row["values"][1]]).all()
        assert (row["loss32"], row["n"], row["values"][0]) == (2.5, 3, 1.0)
        assert np.isnan(row["shares"]["Dense_0"])
        assert row["shares"]["Dense_1"] == [0.5, 0.25]
    assert run.record() == {"threshold": None}
    written_again = RunWriter(tmp_path, {"threshold": float("inf")})
    written_again.close()


def test_resumed(tmp_path):
    written(tmp_path, steps=(0, 10))
    record = {**RECORD, "versions": {"jax": "0.11.0"}}
    with RunWriter(tmp_path, record) as writer:
        assert list(writer.finished) == [0, 10]
        assert writer.finished[10] == {"step": 10, "loss": 1 / 11, "rank": 11}
        for key, array in writer.read(10).items():
            np.testing.assert_array_equal(array, arrays_of(10)[key])
        writer.write(5, {"loss": 1 / 6, "rank": 6}, arrays_of(5))
    run = ntkdiag.open_run(tmp_path)
    assert run.steps() == [0, 5, 10]
    assert run.record() == record
    lines = (tmp_path / "track.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["record"] == RECORD


@pytest.mark.smoke
def test_other_examples_are_refused(tmp_path):
    probe = {"name": "train", "examples": 32, "x": "a" * 64}
    with RunWriter(tmp_path, {"probes": [probe]}):
        pass
    message = refused(RunWriter, tmp_path, {"probes": [{**probe, "examples": 33}]})
    assert "probes.train.examples=32; got probes.train.examples=33. Choose" in message


@pytest.mark.smoke
def test_other_settings_are_refused(tmp_path):
    written(tmp_path)
    other = {**RECORD, "reduction": "trace", "probe": {"sha256": "c" * 200, "examples": 4}}
    before = (tmp_path / "track.jsonl").read_bytes()
    assert refused(RunWriter, tmp_path, {**other, "seed": 1}) == (
        f"ntkdiag: expected the settings of {str(tmp_path / 'track.jsonl')!r}, "
        f"probe.sha256='ab12', reduction='full', seed=nothing; "
        f"got probe.sha256='{'c' * 79}... (202 letters), reduction='trace', seed=1. "
        "Choose another folder, or continue with the settings of this one."
    )
    assert (tmp_path / "track.jsonl").read_bytes() == before
    # Nothing is held: the first settings go on.
    with RunWriter(tmp_path, RECORD) as writer:
        assert list(writer.finished) == [0, 10, 100]


def held_by_another_process(root):
    """A process that writes to a run directory, and waits."""
    script = (
        "import sys; from ntkdiag.runs.run_writer import RunWriter; "
        "writer = RunWriter(sys.argv[1], {}); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(root)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


BEING_WRITTEN = (
    "got one that is being written. Choose another folder, or wait for its writer; in this "
    "process, close its Monitor or delete its optimizer. Reading needs no lock: "
    "ntkdiag.open_run(path)."
)


def test_a_second_writer_is_refused_until_the_first_is_dead(tmp_path):
    process = held_by_another_process(tmp_path)
    try:
        assert refused(RunWriter, tmp_path, {}) == (
            f"ntkdiag: expected a stream {str(tmp_path / 'track.jsonl')!r} that nobody writes to; "
            + BEING_WRITTEN
        )
        assert ntkdiag.open_run(tmp_path).steps() == []
        # Another stream of the same directory has a writer of its own.
        with RunWriter(tmp_path, {}, name="wide") as writer:
            writer.write(0, {}, {})
        assert ntkdiag.open_run(tmp_path).steps("wide") == [0]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    RunWriter(tmp_path, {}).close()


@pytest.mark.usefixtures("wrong_types")
def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path):
    import ml_dtypes

    written(tmp_path, steps=(0,))
    before = sorted(tmp_path.rglob("*"))
    half = np.eye(4).astype(ml_dtypes.bfloat16)
    with RunWriter(tmp_path, RECORD) as writer:
        message = refused(writer.write, 1, {}, {"h": half})
        assert "Convert it: float32 holds every bfloat16" in message
    assert sorted(tmp_path.rglob("*")) == before
    assert "expected a name for a stream" in refused(RunWriter, tmp_path, {}, name="../x")
    (tmp_path / "file").write_text("")
    assert "got FileExistsError: File exists. " in refused(RunWriter, tmp_path / "file", {})


def test_what_cannot_be_read_is_said(tmp_path):
    missing = tmp_path / "missing"
    assert "got no such path. Pass the folder" in refused(ntkdiag.open_run, missing)
    assert "got a path without a .jsonl file in it" in refused(ntkdiag.open_run, tmp_path)
    run = ntkdiag.open_run(written(tmp_path))
    assert "a step with arrays: 0, 10, 100; got 5. " in refused(run.array, 5, "kernel")
    of_array = refused(run.array, 10, "kernels")
    assert "an array: kernel, eigenvalues, share; got 'kernels'" in of_array
    assert f"a stream of {str(tmp_path)!r}: track; got 'ntk'" in refused(run.rows, "ntk")
    (tmp_path / "track.jsonl").rename(tmp_path / "wide.jsonl")
    assert run.steps() == [0, 10, 100]  # of the only one
    RunLog(tmp_path).write(3, {})
    assert f"a stream of {str(tmp_path)!r}: watch, wide; got None." in refused(run.rows)
    assert run.steps("watch") == [3]


def test_readable_without_ntkdiag(tmp_path):
    written(tmp_path)
    text = (tmp_path / "track.jsonl").read_text()
    first, *lines = [json.loads(line) for line in text.splitlines()]
    assert first["record"] == RECORD
    for line in text.splitlines():
        before, _, checksum = line.rpartition(', "crc32": ')
        assert json.loads(checksum.removesuffix("}")) == f"{zlib.crc32(before.encode()):08x}"
    assert [line["step"] for line in lines] == [0, 10, 100]
    for line in lines:
        with np.load(tmp_path / "arrays" / "track" / f"{line['step']}.npz") as stored:
            assert set(stored.files) == set(line["arrays"]) == arrays_of(0).keys()
            for key, array in arrays_of(line["step"]).items():
                np.testing.assert_array_equal(stored[key], array)
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert kinds == {".lock", ".jsonl", ".npz"}
