"""`out=`: a training that is resumed goes on with its stream, another one is refused."""

import optax
import pytest
from monitor_problem import f, problem, train

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import Monitor, RunLog, watch


def watched(out, **options):
    _, x, y = problem()
    options = {"train": (x, y), "every": 2, "loss": "mse", "instruments": "norms", **options}
    return watch(optax.sgd(0.1), f, out=out, top_k=3, **options)


def refused(call, *args, **kwargs):
    """The message of the error that a call raises."""
    with pytest.raises(errors.InvalidInputError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


@pytest.mark.slow
def test_a_resumed_training_goes_on(tmp_path):
    params, _, _ = problem()
    train(watched(tmp_path), params, 5)
    torn = (tmp_path / "watch.jsonl").read_text() + '{"step": 6, "tr'  # killed in mid-line
    (tmp_path / "watch.jsonl").write_text(torn)
    trajectory, _ = train(watched(tmp_path), params, 3)
    run = ntkdiag.open_run(tmp_path)
    assert run.steps() == [1, 2, 4, 1, 2]
    assert (tmp_path / "watch.jsonl").read_text().count('"record"') == 1
    # Another schedule means the same numbers; the record says so from then on.
    train(watched(tmp_path, every=4), trajectory[-1], 1)
    assert run.record()["schedule"] == "Every(k=4)"
    assert run.steps() == [1, 2, 4, 1, 2, 1]


def test_a_run_of_other_settings_examples_or_labels_is_refused_where_it_is_made(tmp_path):
    params, x, y = problem()
    train(watched(tmp_path), params, 1)
    before = (tmp_path / "watch.jsonl").read_bytes()
    said = "loss='mse'; got loss='cross_entropy'. Choose another folder"
    assert said in refused(watched, tmp_path, loss="cross_entropy")
    digest = ntkdiag.ntk(f, params, x + 1).convention.probe
    assert f"got alignment_probe='{digest}', probe='{digest}'. " in refused(
        watched, tmp_path, train=(x + 1, y)
    )
    assert "got labels_sha256=" in refused(watched, tmp_path, train=(x, 1 - y))
    message = refused(Monitor, f, train=(x + 1, y), loss="mse", out=tmp_path)
    assert message.startswith("Monitor(f): expected the settings of ")
    assert (tmp_path / "watch.jsonl").read_bytes() == before


@pytest.mark.slow
def test_two_trainings_of_one_process_are_refused_while_both_live(tmp_path):
    """A sweep whose folder was not changed."""
    first = watch(optax.sgd(0.5), every=1, out=tmp_path)
    said = "one that is being written. Choose another folder, or wait for its writer; in this "
    assert said in refused(watch, optax.sgd(0.05), every=1, out=tmp_path)
    del first
    second = watch(optax.sgd(0.05), every=1, out=tmp_path)
    assert said in refused(Monitor, f, train=problem()[1:], loss="mse", out=tmp_path)
    del second


def test_a_log_that_was_closed_goes_on(tmp_path):
    record = {"call": "watch", "probe": "a"}
    first, again = RunLog(tmp_path), RunLog(tmp_path)
    first.start(record)
    first.write(0, {"trace": 1.0})
    assert "one that is being written" in refused(again.start, record)
    first.close()
    again.start(record)
    again.write(1, {"trace": 2.0})
    again.close()
    first.write(2, {"trace": 3.0})
    assert ntkdiag.open_run(tmp_path).steps() == [0, 1, 2]
