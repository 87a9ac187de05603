"""Run directories after a crash, and after damage: no finished step is lost, no wrong number is read."""

import random
import shutil
import zipfile

import numpy as np
import pytest
from internals import RunWriter

import ntkdiag
from ntkdiag import errors


def arrays_of(step):
    draw = np.random.default_rng(step)
    return {"kernel": draw.normal(size=(3, 5)).astype(np.float32), "zeros": np.zeros(4)}


@pytest.fixture
def intact(tmp_path):
    with RunWriter(tmp_path / "intact", {"dims": {"zeros": ["mode"]}}) as writer:
        for step in range(3):
            writer.write(step, {"loss": 0.5}, arrays_of(step))
    return tmp_path / "intact"


def damage(path, how, draw):
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif how == "truncate":
        del content[draw.randrange(len(content)) :]
    if how == "delete":
        path.unlink()
    else:
        path.write_bytes(content)


def array_files(root):
    return sorted((root / "arrays" / "track").glob("*.npz"))


@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_damaged_arrays_are_found(how, intact, tmp_path):
    draw = random.Random(how)
    for _ in range(5):
        root = shutil.copytree(intact, tmp_path / "damaged", dirs_exist_ok=True)
        path = draw.choice(array_files(root))
        damage(path, how, draw)
        step = int(path.stem)
        with pytest.raises(errors.CheckpointError) as caught:
            ntkdiag.open_run(root).to_xarray()
        assert f"expected the arrays of {str(path)!r} as they were written; got " in str(
            caught.value
        )
        # Every other array is as it was, and the writer writes this step once more.
        with RunWriter(root, {"dims": {"zeros": ["mode"]}}) as writer:
            assert writer.finished.keys() == {0, 1, 2}
            assert [s for s in range(3) if writer.read(s) is None] == [step]
            assert writer.finished.keys() == {0, 1, 2} - {step}
            writer.write(step, {"loss": 0.25}, arrays_of(step))
        run = ntkdiag.open_run(root)
        assert run.steps() == [0, 1, 2]
        assert [row["loss"] for row in run.rows()] == [0.25 if s == step else 0.5 for s in range(3)]
        np.testing.assert_array_equal(
            run.to_xarray()["kernel"], np.stack([arrays_of(s)["kernel"] for s in range(3)])
        )
        shutil.rmtree(root)


def test_bytes_that_changed_give_no_other_number(intact):
    """Of an array, its header or its numbers, and of a line: it is refused, not there, or the same."""
    array, lines = intact / "arrays" / "track" / "0.npz", intact / "track.jsonl"
    run = ntkdiag.open_run(intact)
    rows = {row["step"]: row for row in run.rows()}
    draw = random.Random(0)

    def changed(path, begin):
        content = path.read_bytes()
        for position in range(begin, len(content), 3):
            damaged = bytearray(content)
            damaged[position] ^= 1 << draw.randrange(8)
            path.write_bytes(damaged)
            yield position
        path.write_bytes(content)

    for _ in changed(array, 0):
        try:  # a date, or other bits that nobody reads, may be another one
            np.testing.assert_array_equal(run.array(0, "kernel"), arrays_of(0)["kernel"])
        except errors.CheckpointError:
            continue
    np.testing.assert_array_equal(run.array(0, "kernel"), arrays_of(0)["kernel"])
    lost = []
    for _ in changed(lines, lines.read_bytes().index(b"\n")):
        read = ntkdiag.open_run(intact).rows()
        for row in read:
            # Beside them a checksum may stand under another name than its own.
            assert rows[row["step"]].items() <= row.items()
        lost.append(len(read) < 3)
    assert np.mean(lost) > 0.9


HEADERS = {
    ("(3, 5)", "(1000000, 1000000)"): "60 bytes, which are not float32 of shape [1000000, 1",
    ("<f4", "|O"): "60 bytes, which are not object of shape [3, 5]",
    ("(3, 5)", "(3, __import__('os').abort())"): "ValueError: ",
    ("(3, 5)", "(" * 200 + ")" * 200): "",
}


def test_a_header_that_says_something_else_is_refused(intact):
    path = intact / "arrays" / "track" / "0.npz"
    with zipfile.ZipFile(path) as archive:
        content = archive.read("kernel.npy")
    for (before, after), got in HEADERS.items():
        text = content[10:-60].decode().replace(before, after).rstrip()
        length = -(-len(text) // 64) * 64 + 53
        header = (length + 1).to_bytes(2, "little") + f"{text:{length}}\n".encode()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("kernel.npy", content[:8] + header + content[-60:])
        with pytest.raises(errors.CheckpointError) as caught:
            ntkdiag.open_run(intact).array(0, "kernel")
        assert got in str(caught.value)


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
        with RunWriter(intact, {"dims": {"zeros": ["mode"]}}) as writer:
            assert list(writer.finished) == [0, 1]
            writer.write(2, {"loss": 0.5}, arrays_of(2))
        assert ntkdiag.open_run(intact).steps() == [0, 1, 2]
