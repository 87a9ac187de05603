"""Run directories that come from elsewhere: nothing hangs, nothing is executed, nothing outside is touched."""

import os
import resource
import signal
import sys

import numpy as np
import pytest
from internals import RunWriter
from test_run_directories import refused

import ntkdiag
from ntkdiag.monitor import RunLog

GOOD = '{"step": 1, "trace": 1.0}'
pytestmark = pytest.mark.timeout(60)


def watched(root, *lines):
    root.mkdir(exist_ok=True)
    text = "\n".join(['{"record": {"call": "watch"}}', GOOD, *lines])
    (root / "watch.jsonl").write_bytes(text.encode(errors="surrogatepass") + b"\n")
    return ntkdiag.open_run(root)


# What a line may be that is none, and how it is told apart from those that are.
NO_ROWS = {
    "deep nesting": "[" * 100_000,
    "integer of 5,000 digits": '{"step": 2, "trace": ' + "9" * 5_000 + "}",
    "step is text": '{"step": "2"}',
    "step is a fraction": '{"step": 1.5}',
    "no step": '{"trace": 2.0}',
    "a list": "[1, 2]",
    "NUL bytes": "\0" * 1000,
    "record is a list": '{"record": [1]}',
    "wrong checksum": '{"step": 2, "crc32": "00000000"}',
    "half a checksum": '{"step": 2, "crc32": "0000',
    "arrays are a dictionary": '{"step": 2, "arrays": {"x": "0"}}',
}  # fmt: skip


def test_lines_that_are_none_are_passed_over_and_counted(tmp_path):
    for number, (name, line) in enumerate(NO_ROWS.items()):
        run = watched(tmp_path / str(number), line, '{"step": 3, "trace": 3.0}')
        assert run.steps() == [1, 3], name
        assert run.passed_over() == 1, name
    assert repr(run).endswith("watch 2 steps, 1 to 3, 1 line skipped)")
    assert "2 steps, 1 to 3, 1 line skipped" in repr(run)
    assert run.to_pandas()["trace"].tolist() == [1.0, 3.0]
    assert run.record() == {"call": "watch"}
    assert run.rows()[0] == {"step": 1, "trace": 1.0}
    page = run.save(tmp_path / "run.html").read_text()
    assert "1 line skipped in watch.jsonl" in page


def test_a_named_pipe_is_never_waited_for(tmp_path):
    root = tmp_path / "run"
    with RunWriter(root, {}) as writer:
        writer.write(0, {}, {"a": np.ones(3)})
    os.mkfifo(root / "watch.jsonl")
    (root / "arrays" / "track" / "0.npz").unlink()
    os.mkfifo(root / "arrays" / "track" / "0.npz")
    run = ntkdiag.open_run(root)
    assert run.names == ["track"]
    assert "got OSError: no regular file" in refused(run.array, 0, "a")
    assert "got OSError: no regular file" in refused(RunLog(root).begin, {})
    # A step whose array is none is written once more.
    with RunWriter(root, {}) as writer:
        assert writer.read(0) is None
        assert writer.finished == {}
        writer.write(0, {}, {"a": np.zeros(3)})
    assert run.array(0, "a").tolist() == [0, 0, 0]


@pytest.fixture
def outside(tmp_path):
    """A folder that no run directory may touch."""
    folder = tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    for path in (folder / "precious", folder / "deep" / "precious.npy"):
        path.write_text("precious")
    return folder


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("arrays", "deep"),
        ("track.jsonl", "precious"),
        (".track.lock", "precious"),
    ],
)
def test_a_link_below_a_run_directory_is_not_written_through(place, target, outside, tmp_path):
    root = tmp_path / "run"
    with RunWriter(root, {}) as writer:
        writer.write(0, {}, {"a": np.ones(3)})
    link = root / place
    if link.is_dir():
        os.replace(link, tmp_path / "aside")
    link.unlink(missing_ok=True)
    link.symlink_to(outside / target)
    before = content(outside)

    def go_on():
        with RunWriter(root, {}) as writer:
            for step in (0, 1):
                if step not in writer.finished:
                    writer.write(step, {}, {"precious": np.zeros(3)})

    message = refused(go_on)
    assert f"below the run directory {str(root)!r}; got a link, " in message
    assert repr(str(link)) in message
    assert content(outside) == before
    # Nor does a monitor write through one.
    (root / "watch.jsonl").symlink_to(outside / "precious")
    assert "got a link, " in refused(RunLog(root).start, {"call": "watch"})
    assert content(outside) == before


# Folders that are moved, deleted or changed while they are written.
def moved(root):
    root.rename(root.with_name("moved"))


def replaced(root):
    moved(root)
    with RunWriter(root, {"of": "another"}):
        pass


def lines_added(root):
    with (root / "track.jsonl").open("a") as file:
        file.write(GOOD + "\n")


@pytest.mark.parametrize("change", [moved, replaced, lines_added])
def test_a_writer_whose_folder_was_changed_writes_nothing_more(change, tmp_path):
    root = tmp_path / "run"
    with RunWriter(root, {"of": "this"}) as writer:
        writer.write(0, {}, {"a": np.ones(3)})
        change(root)
        before = content(tmp_path)
        message = refused(writer.write, 1, {}, {"a": np.ones(3)})
        assert f"expected {str(root / 'track.jsonl')!r} with the " in message
        assert "bytes that were written; got " in message
        assert "It was moved, deleted or changed while it was written." in message
        assert message == refused(writer.amend, 0, {"b": 1})
        assert content(tmp_path) == before
    if change is moved:
        assert ntkdiag.open_run(root.with_name("moved")).steps() == [0]


# Disks that are full, and folders that nobody may write to.
@pytest.fixture
def full_disk(monkeypatch):
    """A disk that takes so many bytes of a file, and no more."""
    # Python would write what fits of a module's bytecode and not read it back: modules imported now write none.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    signal_before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(n_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, unlimited[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    signal.signal(signal.SIGXFSZ, signal_before)


@pytest.mark.parametrize("room", [50, 100_000])
def test_a_disk_that_becomes_full_is_said_and_nothing_finished_is_lost(room, full_disk, tmp_path):
    kernel = np.random.default_rng(0).normal(size=(200, 200))
    with RunWriter(tmp_path, {}) as writer:
        writer.write(0, {"trace": 1.0}, {"kernel": kernel})
        before = content(tmp_path)
        full_disk(room)
        message = refused(writer.write, 1, {"trace": 2.0}, {"kernel": kernel})
        assert (
            f"expected a disk that accepts {str(tmp_path / 'arrays' / 'track' / '1.npz')!r}; "
            "got OSError: " in message
        )
        assert message.endswith("What was finished before is kept.")
        message = refused(writer.amend, 0, {"trace": 3.0}) if room < 200 else ""
        assert str(tmp_path / "track.jsonl") in message or room >= 200
        full_disk(resource.RLIM_INFINITY)
        if room < 200:
            lines = tmp_path / "track.jsonl"
            assert lines.read_bytes() == before[lines]  # no torn line
        writer.write(1, {"trace": 2.0}, {"kernel": kernel})
    run = ntkdiag.open_run(tmp_path)
    assert run.steps() == [0, 1]
    assert run.passed_over() == 0
    np.testing.assert_array_equal(run.array(1, "kernel"), kernel)
