"""Run directories after a crash, and after damage: no finished step is lost, no wrong number is read."""

import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
from internals import RunWriter

import ntkdiag
from ntkdiag import errors

# Writers that are killed one after the other. Each reads what the last one left, with no lock held,
# then says which steps it found as a writer, and which it wrote.
KILLED_WRITERS = """
import itertools, os, random, signal, sys, time, warnings
import numpy as np
import ntkdiag
from ntkdiag.runs.run_writer import RunWriter

def read(root):
    if os.path.exists(os.path.join(root, "track.jsonl")):
        run = ntkdiag.open_run(root)
        for step in run.steps():
            for key in "abc":
                assert (run.array(step, key) == step + 0.5).all()

def write(root, steps):
    read(root)
    writer = RunWriter.open(root, {"name": "killed"})
    os.write(1, f"found {sorted(writer.finished)}\\n".encode())
    for step in itertools.islice(itertools.count(len(writer.finished)), steps):
        arrays = {key: np.full((150, 150), step + 0.5) for key in "abc"}
        writer.write(step, {"loss": 1.0 * step, "text": "x" * 20000}, arrays)
        os.write(1, f"wrote {step}\\n".encode())
    os._exit(0)

def forked(root, steps):
    child = os.fork()
    if child == 0:
        write(root, steps)
    return child

warnings.simplefilter("ignore")
root, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
for _ in range(kills):
    child = forked(root, None)
    time.sleep(draw.uniform(0.0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
child = forked(root, 1)
assert os.waitpid(child, 0)[1] == 0
"""


def killed(root, kills, seed):
    """What the killed writers said, in order."""
    command = [sys.executable, "-c", KILLED_WRITERS, str(root), str(kills), str(seed)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=True, env=environment
    )
    assert "Traceback" not in run.stderr
    return [line.split(" ", 1) for line in run.stdout.splitlines()]


@pytest.mark.parametrize(
    "kills", [pytest.param(5, id="5"), pytest.param(30, id="30", marks=pytest.mark.slow)]
)
def test_killed_at_any_moment(kills, tmp_path):
    finished = set()
    for what, steps in killed(tmp_path, kills, seed=kills):
        if what == "wrote":
            finished.add(int(steps))
        else:
            # The line may have been written before the writer could say so.
            found = {int(step) for step in steps.strip("[]").split(", ") if step}
            assert finished <= found <= finished | {len(finished)} == set(range(len(finished) + 1))
            finished = found
    # The last writer was let live for one step.
    run = ntkdiag.open_run(tmp_path)
    assert set(run.steps()) == finished >= {0}
    for step, row in zip(run.steps(), run.rows(), strict=True):
        assert row["loss"] == step
        for key in "abc":
            assert (run.array(step, key) == step + 0.5).all()
    # The lock is free, and the next step can be written over what was left.
    with RunWriter.open(tmp_path, {"name": "killed"}) as writer:
        writer.write(len(writer.finished), {}, {"a": np.zeros(3)})
        arrays = writer.read(len(writer.finished) - 1)
        assert arrays is not None
        assert (arrays["a"] == 0).all()


def arrays_of(step):
    draw = np.random.default_rng(step)
    return {"kernel": draw.normal(size=(3, 5)).astype(np.float32), "zeros": np.zeros(4)}


@pytest.fixture
def intact(tmp_path):
    with RunWriter.open(tmp_path / "intact", {"dims": {"zeros": ["mode"]}}) as writer:
        for step in range(3):
            writer.write(step, {"loss": 0.5}, arrays_of(step))
    return tmp_path / "intact"


def damage(path, how, draw):
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif how == "byte":
        position = draw.randrange(len(content))
        content[position] = (content[position] + draw.randrange(1, 256)) % 256
    elif how == "truncate":
        del content[draw.randrange(len(content)) :]
    if how == "delete":
        path.unlink()
    else:
        path.write_bytes(content)


def array_files(root):
    return sorted((root / "arrays" / "track").glob("*/*.npy"))


@pytest.mark.parametrize("how", ["flip", "byte", "truncate", "delete"])
def test_damaged_arrays_are_found(how, intact, tmp_path):
    draw = random.Random(how)
    for _ in range(8):
        root = shutil.copytree(intact, tmp_path / "damaged", dirs_exist_ok=True)
        path = draw.choice(array_files(root))
        damage(path, how, draw)
        step, key = int(path.parent.name), path.stem
        with pytest.raises(errors.CheckpointError) as caught:
            ntkdiag.open_run(root).array(step, key)
        assert f"expected the array {str(path)!r} as it was written; got " in str(caught.value)
        assert str(caught.value).endswith("a damaged step is computed again.")
        # Every other array is as it was, and the writer writes this step once more.
        with RunWriter.open(root, {"dims": {"zeros": ["mode"]}}) as writer:
            # A file of another size is seen at once, other bytes when they are read.
            if how in ("flip", "byte") and step in writer.finished:
                assert writer.finished.keys() == {0, 1, 2}
                assert writer.read(step) is None
            assert writer.finished.keys() == {0, 1, 2} - {step}
            writer.write(step, {"loss": 0.25}, arrays_of(step))
        run = ntkdiag.open_run(root)
        assert run.steps() == [0, 1, 2]
        assert [row["loss"] for row in run.rows()] == [0.25 if s == step else 0.5 for s in range(3)]
        np.testing.assert_array_equal(
            run.arrays("kernel"), np.stack([arrays_of(s)["kernel"] for s in range(3)])
        )
        shutil.rmtree(root)


def test_every_byte_of_an_array_counts(intact):
    """Whatever byte is changed, of the header or of the numbers: the array is refused."""
    path = intact / "arrays" / "track" / "0" / "kernel.npy"
    content = path.read_bytes()
    run = ntkdiag.open_run(intact)
    draw = random.Random(0)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(errors.CheckpointError):
            run.array(0, "kernel")
    path.write_bytes(content)
    np.testing.assert_array_equal(run.array(0, "kernel"), arrays_of(0)["kernel"])


def test_a_line_is_as_it_was_written_or_none(intact):
    """Whatever byte is changed: numbers are those that were written, or the step is not finished."""
    path = intact / "track.jsonl"
    content = path.read_bytes()
    rows = {row["step"]: row for row in ntkdiag.open_run(intact).rows()}
    draw = random.Random(0)
    n_lost = 0
    for position in range(content.index(b"\n"), len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        read = ntkdiag.open_run(intact).rows()
        for row in read:
            # Beside them a checksum may stand under another name than its own.
            assert rows[row["step"]].items() <= row.items()
        n_lost += len(read) < 3
    assert n_lost > 0.9 * (len(content) - content.index(b"\n"))


@pytest.mark.parametrize(
    ("before", "after", "got"),
    [
        ("(3, 5)", "(5, 3)", "other bytes than were written: its SHA-256 differs"),
        ("(3, 5)", "(15,)", "other bytes than were written: its SHA-256 differs"),
        ("<f4", "<i4", "other bytes than were written: its SHA-256 differs"),
        ("(3, 5)", "(1000000, 1000000)", "60 bytes of numbers, which are not of shape [1000000, 1"),
        ("(3, 5)", "(3, 5, 999999999999999)", "60 bytes of numbers, which are not of shape [3, 5, "),
        ("(3, 5)", f"({'1, ' * 40})", "dtype <f4 with 40 axes"),
        ("(3, 5)", "(3, -5)", "a file that does not begin as arrays that are written here"),
        ("<f4", "|O", "a file that does not begin as arrays that are written here"),
        ("<f4", "|V4", "dtype |V4 with 2 axes"),
        ("'<f4'", "[('a', '<f4')]", "a file that does not begin as arrays that are written here"),
        ("False", "True", "a file that does not begin as arrays that are written here"),
        ("(3, 5)", "(3, __import__('os').abort())", "a file that does not begin as arrays"),
        ("(3, 5)", "(" * 200 + ")" * 200, "a file that does not begin as arrays"),
    ],
)  # fmt: skip
def test_a_header_that_says_something_else_is_refused(before, after, got, intact):
    path = intact / "arrays" / "track" / "0" / "kernel.npy"
    content = path.read_bytes()
    text = content[10:-60].decode().replace(before, after).rstrip()
    length = -(-len(text) // 64) * 64 + 53
    path.write_bytes(
        content[:8]
        + (length + 1).to_bytes(2, "little")
        + f"{text:{length}}\n".encode()
        + content[-60:]
    )
    with pytest.raises(errors.CheckpointError) as caught:
        ntkdiag.open_run(intact).array(0, "kernel")
    assert f"got {got}" in str(caught.value)


def test_an_array_without_entries_may_not_have_an_absurd_axis(intact):
    with RunWriter.open(intact, {"dims": {"zeros": ["mode"]}}) as writer:
        writer.write(3, {}, {"none": np.zeros((0, 5))})
    path = intact / "arrays" / "track" / "3" / "none.npy"
    content = path.read_bytes()
    shape = ", ".join(["999999999999999"] * 5)
    text = content[10:].decode().replace("(0, 5)", f"(0, {shape})").rstrip()
    path.write_bytes(content[:8] + (len(text) + 1).to_bytes(2, "little") + text.encode() + b"\n")
    with pytest.raises(errors.CheckpointError, match="got shape"):
        ntkdiag.open_run(intact).array(3, "none")


def test_a_file_that_is_larger_than_memory_is_refused_at_once(intact):
    """A sparse file takes no room on disk, and says what it likes."""
    path = intact / "arrays" / "track" / "0" / "kernel.npy"
    content = path.read_bytes()
    text = content[10:-60].decode().replace("(3, 5)", "(1000000, 1000000)").rstrip()
    header = content[:8] + (len(text) + 1).to_bytes(2, "little") + text.encode() + b"\n"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + 4 * 10**12)
    with pytest.raises(errors.MemoryBudgetError) as caught:
        ntkdiag.open_run(intact).array(0, "kernel")
    assert str(caught.value).startswith(
        f"Run.array(step, key): expected 4 TB for the array {str(path)!r}; got "
    )
    assert str(caught.value).endswith(" free. Read it where there is more memory.")


def test_torn_at_any_byte(intact):
    path = intact / "track.jsonl"
    text = path.read_bytes()
    begin = text[:-1].rindex(b"\n") + 1
    for length in range(begin, len(text)):
        path.write_bytes(text[:length])
        complete = length == len(text) - 1  # only the end of the line is missing
        assert ntkdiag.open_run(intact).steps() == ([0, 1, 2] if complete else [0, 1])
    for length in (begin, begin + 7, len(text) - 2):
        path.write_bytes(text[:length])
        with RunWriter.open(intact, {"dims": {"zeros": ["mode"]}}) as writer:
            assert list(writer.finished) == [0, 1]
            writer.write(2, {"loss": 0.5}, arrays_of(2))
        assert ntkdiag.open_run(intact).steps() == [0, 1, 2]


def test_killed_while_the_record_was_written(tmp_path):
    (tmp_path / "track.jsonl").write_text('{"record": {"loss": "ms')
    with RunWriter.open(tmp_path, {"loss": "mse"}) as writer:
        writer.write(0, {}, {})
    run = ntkdiag.open_run(tmp_path)
    assert (run.record(), run.steps()) == ({"loss": "mse"}, [0])


def test_rows_that_lost_their_record_are_not_gone_on_with(intact):
    path = intact / "track.jsonl"
    path.write_text("#" + path.read_text())
    with pytest.raises(errors.CheckpointError) as caught:
        RunWriter.open(intact, {"dims": {"zeros": ["mode"]}})
    assert str(caught.value) == (
        f"ntkdiag: expected a convention record as the first line of {str(path)!r}; "
        "got 3 rows without one. Choose another folder: what these numbers mean is not known."
    )
