"""Findings of real trainings: of rates that are too high, before spikes, and never else."""

import functools

import flax.linen as nn
import numpy as np
import optax
import pytest
from internals import judge
from training_runs import Mlp, training

from ntkdiag.monitor import RunLog

pytest_plugins = ["shell"]
STEPS, RATE = 120, 0.01
SCHEDULES = {
    "warm-up and cosine": optax.warmup_cosine_decay_schedule(0.0, 1.0, STEPS // 10, STEPS),
    "cosine": optax.cosine_decay_schedule(1.0, STEPS),
    "constant": optax.constant_schedule(1.0),
}


@pytest.mark.slow
def test_healthy_runs_have_no_warning_and_rates_too_high_a_finding_in_time(shell, tmp_path):
    run = training(Mlp(), optax.adamw, batch=32, every=2)
    for name, schedule in SCHEDULES.items():
        shape = np.array([schedule(step) for step in range(STEPS)])
        losses, rows, record = run(RATE * shape)
        assert losses[-20:].mean() < 0.7 * losses[0], name  # it does train
        writer = RunLog(tmp_path / name)
        writer.start(record)
        for row in rows:
            writer.write(row["step"], {key: row[key] for key in row if key != "step"})
        status, out, _ = shell("check", str(tmp_path / name))
        assert (status, "warning" in out) == (0, False), (name, out)
        for factor in (10, 37):
            losses, rows, record = run(factor * RATE * shape)
            doubled = np.flatnonzero(~(losses <= 2 * losses[0]))
            found = [one.step for one in judge(rows, record) if not one.id.startswith("batch")]
            if len(doubled):
                assert found, (name, factor)
                # Row t describes the parameters after t updates, before the loss of step t.
                assert min(found) <= doubled[0], (name, factor)
    assert found  # at a constant rate of 0.37, all of them


@pytest.mark.slow
def test_the_edge_of_stability_is_no_warning():
    adam = functools.partial(optax.adam, b2=0.95)
    options = {"batch": None, "n": 128, "probe": 128, "loss": "mse", "every": 10}
    for optimizer, rate in ((optax.sgd, 0.4), (adam, 1e-3)):
        run = training(Mlp(activation=nn.tanh), optimizer, **options)
        _, rows, record = run(np.full(600, rate))
        assert max(row["margin"] for row in rows[20:]) > 1.0
        assert "margin-at-edge" in [finding.id for finding in judge(rows, record)]
        assert [str(one) for one in judge(rows, record) if one.severity != "info"] == []
