"""Several processes of one JAX program: the first one writes, all have the same result, none waits without end."""

import json
import signal
import time

import numpy as np
import pytest
from internals import RunWriter
from several_processes import Program, said_by

import ntkdiag

pytestmark = pytest.mark.slow  # each process begins with JAX, which takes seconds

TRACK = """
import json

rng = np.random.default_rng(0)
x, y = rng.normal(size=(8, 4)).astype(np.float32), np.arange(8) % 2
w = rng.normal(size=(4, 2)).astype(np.float32)

def checkpoints(n):
    for t in range(n):
        if str(t) in os.environ.get("KILLED_AT", "") and number == int(os.environ["KILLED"]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield t, {"w": np.float32(w * (1 + t))}

def tracked(n, out, **options):
    model = lambda p, x: jax.numpy.tanh(x @ p["w"])
    return ntkdiag.track(checkpoints(n), model=model, train=(x, y), loss="mse", out=out, **options)
"""
TRACKED = (
    TRACK
    + """
for n in map(int, arguments[1:]):
    try:
        run = tracked(n, arguments[0])
        say(json.dumps({"steps": run.steps, **run.to_dict()}))
        # Process 0 waits for nobody: it may write the steps of its next call already.
        say(run.run is not None and run.run.steps()[: len(run.steps)] == run.steps)
    except errors.NtkdiagError as error:
        say(one_line(error))
"""
)


def test_track_writes_once_and_gives_all_the_same(tmp_path):
    out = tmp_path / "run"
    # The second call goes on where the first one ended; the third finds everything.
    first, *others = said_by(TRACKED, 2, out, 3, 5, 5)
    for said in others:
        assert said == first
    steps = [json.loads(line)["steps"] for line in first[::2]]
    assert steps == [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert first[1::2] == ["True"] * 3
    run = ntkdiag.open_run(out)
    assert run.steps() == [0, 1, 2, 3, 4]
    lines = (out / "track.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 5
    traces = [row["trace"] for row in json.loads(first[-2])["checkpoints"]]
    np.testing.assert_array_equal(run.tracked.series("trace"), traces)


def test_a_folder_of_other_settings_ends_all_of_them(tmp_path):
    with RunWriter(tmp_path, {"reduction": "another"}):
        pass
    first, second = said_by(TRACKED, 2, tmp_path, 3)
    assert first[0].startswith("InvalidInputError: track(run): expected the settings of ")
    assert second[0] == first[0].replace("Error: ", "Error: Process 0 of 2: ", 1)


def test_other_checkpoints_in_one_process_are_an_error(tmp_path):
    script = TRACK + (
        "try:\n"
        "    say(tracked(4 - number, arguments[0]).steps)\n"
        "except errors.NtkdiagError as error:\n"
        "    say(one_line(error))\n"
    )
    first, second = said_by(script, 2, tmp_path / "more")
    assert first == ["[0, 1, 2, 3]"]
    assert second == [
        "InvalidInputError: track(run): expected the checkpoints of process 0, which has come to "
        "step 3; got the end. Pass the same run in all processes."
    ]


@pytest.mark.parametrize("killed", [0, 1])
def test_one_process_is_killed_and_the_other_ends_in_time(killed, tmp_path, monkeypatch):
    monkeypatch.setenv("KILLED", str(killed))
    monkeypatch.setenv("KILLED_AT", "3")
    begun = time.monotonic()
    # Each comes to the end of the other, as the next collective operation would have it.
    script = TRACK + (
        "import jax.experimental.multihost_utils\n"
        "try:\n"
        "    tracked(6, arguments[0])\n"
        "    jax.experimental.multihost_utils.sync_global_devices('end')\n"
        "except Exception as error:\n"
        "    say(one_line(error))\n"
        "    raise\n"
        "say('went on')\n"
    )
    with Program(script, 2, tmp_path / "run") as program:
        ends = program.ends()
    assert time.monotonic() - begun < 100
    for number, (said, err, status) in enumerate(ends):
        assert "went on" not in said
        assert status == -signal.SIGKILL if number == killed else status != 0
        # Ours, where it was waited for; or that of JAX, which ends the processes of a dead one.
        if number != killed:
            assert (
                "expected process 0, which writes" in " ".join(said) or "another task died" in err
            )
    steps = ntkdiag.open_run(tmp_path / "run").steps()
    assert steps[:3] == [0, 1, 2]
    for step in steps:
        assert np.isfinite(ntkdiag.open_run(tmp_path / "run").array(step, "kernel")).all()
