"""60 damaged run directories: whatever is in them, every call gives numbers that were written, or an error of ours.

The fast suite damages 20 others, and reads them.
"""

import contextlib
import functools
import os
import random
import shutil
import signal
import time

import matplotlib.pyplot as plt
import mutated_runs
import numpy as np
import pytest
import typer.testing
from synthetic_run import write_tracked

import ntkdiag
from ntkdiag import errors

FOLDERS = 60
OF_A_TEST = 20
SECONDS = 10  # of processor time, that no call takes
pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore"),  # numbers that are hostile warn of themselves
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs the files of POSIX"),
]


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    root = tmp_path_factory.mktemp("intact") / "run"
    mutated_runs.write_run(root)
    run = ntkdiag.open_run(root)
    assert run.names == ["probe", "track", "watch"]
    return root


def command(*words):
    """A command of the shell; its errors are ours, or its own way out."""
    from internals import app

    result = typer.testing.CliRunner().invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception


def calls(root, intact, out, draw):
    """Every call that reads a run directory, and those that go on with one."""
    run = ntkdiag.open_run(root)
    yield lambda: repr(run)
    for name in ("track", "probe", "watch"):
        for read in (
            run.record,
            run.rows,
            run.steps,
            run.passed_over,
            run.to_pandas,
            run.to_xarray,
        ):
            yield functools.partial(read, name)
    for key in ("kernel", "eigenvalues", "modes", "outputs"):
        yield functools.partial(run.array, 10, key, name="track")
        yield functools.partial(run.arrays, key, name="track")
    yield run.to_dict
    yield lambda: ntkdiag.monitor.read_findings(root / "watch.jsonl")
    yield functools.partial(of_track, run)
    yield functools.partial(run.save, out / "run.html")
    yield functools.partial(run.save, out / "run.json")
    yield lambda: ntkdiag.open_runs([intact, root])
    yield functools.partial(command, "show", root)
    if draw.random() < 0.3:
        yield lambda: mutated_runs.tracked(root)
        yield lambda: ntkdiag.monitor.RunLog(root).begin({"call": "watch"})


def of_track(run):
    """Everything that a `Track` says of itself."""
    track = run.tracked
    if track is None:
        return
    for name in track.names:
        track.series(name)
    repr(track), track.to_dict(), track.to_pandas(), track.to_xarray()
    for name in dir(track.plot)[:3]:
        getattr(track.plot, name)()
    plt.close("all")


class Hangs(BaseException):
    """Raised where a call takes far too long."""


@contextlib.contextmanager
def no_hang():
    """A call that takes so much time is a failure: of the processor, or, where it waits, of the clock."""

    def stop(number, frame):
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(10 * SECONDS)
    begun = time.process_time()
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert time.process_time() - begun < SECONDS


def mutated(intact, root, seed):
    """A copy that was damaged in one to three ways, and which they were."""
    draw = random.Random(seed)
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(intact, root)
    ways = mutated_runs.BY_ACCIDENT if seed % 2 else mutated_runs.ON_PURPOSE
    done = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        way = draw.choice(ways)
        # What an earlier way took away cannot be damaged.
        with contextlib.suppress(
            IndexError, OSError, ValueError, KeyError, TypeError, AttributeError
        ):
            way(root, draw)
            done.append(way.__name__)
    return done, draw


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, FOLDERS, OF_A_TEST))
def test_every_call_gives_an_answer_or_an_error_of_ours(first, intact, tmp_path):
    n_read, n_refused = 0, 0
    for seed in range(first, first + OF_A_TEST):
        root = tmp_path / "mutated"
        done, draw = mutated(intact, root, seed)
        try:
            for call in calls(root, intact, tmp_path, draw):
                try:
                    with no_hang():
                        call()
                    n_read += 1
                except errors.NtkdiagError:
                    n_refused += 1
        except errors.NtkdiagError:
            n_refused += 1  # there is no run any more
        except BaseException as error:
            error.add_note(f"folder {seed}, damaged by {done}")
            raise
        assert not (root / "executed").exists()
    assert n_read > n_refused > 0


def numbers_of(root):
    """The rows and arrays that can be read, each as text."""
    try:
        run = ntkdiag.open_run(root)
    except errors.NtkdiagError:
        return {}, {}
    rows, arrays = {}, {}
    for name in run.names:
        with contextlib.suppress(errors.NtkdiagError):
            rows[name] = run.rows(name)
        for step in (0, 10, 100):
            for key in (
                "kernel",
                "eigenvalues",
                "modes",
                "outputs",
                "labels",
                "a_eigenvalues",
                "b_eigenvalues",
            ):
                with contextlib.suppress(errors.NtkdiagError):
                    array = run.array(step, key, name=name)
                    arrays[name, step, key] = (array.dtype, array.shape, array.tobytes())
    return rows, arrays


@pytest.mark.slow
def test_damage_gives_no_other_number(intact, tmp_path):
    check_numbers(intact, tmp_path / "mutated", range(1, 6 * OF_A_TEST, 2))


def test_damage_gives_no_other_number_of_a_run_that_is_written_by_hand(tmp_path):
    intact = tmp_path / "run"
    write_tracked(intact, steps=[0, 10, 100], margins=[0.2, 0.5, 0.9], e1=np.zeros((3, 3)))
    check_numbers(intact, tmp_path / "mutated", range(1, 2 * OF_A_TEST, 2))


def check_numbers(intact, root, seeds):
    """Every row is one that was written, and every array is the one of its name."""
    written, arrays = numbers_of(intact)
    in_words = {str(row) for rows in written.values() for row in rows}
    n_lost = 0
    for seed in seeds:
        done, _ = mutated(intact, root, seed)
        rows_now, arrays_now = numbers_of(root)
        for rows in rows_now.values():
            for row in rows:
                # A checksum may stand under another name, where a bit of its own name was flipped.
                known = {name: row[name] for name in row if not name.startswith(("crc", "arr"))}
                assert str(row) in in_words or str(known) in in_words or len(row) < 3, (
                    seed,
                    done,
                    row,
                )
        for key, array in arrays_now.items():
            assert arrays.get(key) == array, (seed, done, key)
        n_lost += len(arrays_now) < len(arrays) or rows_now != written
    assert n_lost > OF_A_TEST / 4
