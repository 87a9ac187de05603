"""The risk of a spike: its rule, and what it is a finding of."""

import math

import numpy as np
import pytest
from internals import (
    CONSTANT,
    THRESHOLD,
    USUAL,
    WEIGHTS,
    drifts,
    log_findings,
    spike_findings,
    spike_numbers,
    spike_risk,
)


def history(margins=(), update_norms=(), **others):
    """Measurements of equal distance."""
    columns = {"margin": margins, "update_norm": update_norms, **others}
    length = max(map(len, columns.values()))
    rows = [{"step": 10 * k} for k in range(length)]
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=False):
            row[name] = value
    return rows


def test_the_risk_is_that_of_its_formula():
    rows = history([0.1] * 5 + [0.8], [1.0] * 5 + [3.0])
    total = CONSTANT
    total += WEIGHTS["margin"] * math.log(0.8)
    total += WEIGHTS["update norm over its median"] * math.log(3.0)
    risk = spike_risk(spike_numbers(rows))
    assert risk == pytest.approx(1.0 / (1.0 + math.exp(-total)))


def test_what_is_not_known_counts_as_usual():
    """Lion has no margin."""
    norms = [1.0] * 5 + [3.0]
    without = spike_risk(spike_numbers(history([math.nan] * 6, norms)))
    usual = spike_risk(spike_numbers(history([USUAL["margin"]] * 6, norms)))
    assert without == pytest.approx(usual)
    assert math.isnan(spike_risk(spike_numbers(history([math.nan] * 6))))


def test_nothing_is_found_where_all_stands_still():
    assert spike_findings(history([0.5] * 12, [1.0] * 12)) == []
    assert spike_findings(history([0.5], [1.0])) == []


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"learning_rate": [0.1] * 11 + [1.0]}, "the learning rate"),
        ({"learning_rate": [0.1] * 12}, "margin that rises"),
        ({"learning_rate": [0.1] * 12, "margins": [0.9] * 12}, "at the edge"),
        ({"margins": [0.5] * 12}, "an update that is larger"),
        ({"margins": [math.nan] * 12, "dtypes": [["float32"]] * 12}, "an update that is larger"),
        ({"margins": [0.5] * 12, "dtypes": [["bfloat16", "float32"]] * 12}, "half precision"),
        ({"margins": [0.9] * 12, "dtypes": [["bfloat16"]] * 12}, "at the edge"),
        (
            {
                "learning_rate": [0.1] * 12,
                "margins": [0.5] * 12,
                "gradient_norm": [1.0] * 11 + [50.0],
            },
            "a batch",
        ),
    ],
)
def test_what_it_looks_like(others, words):
    numbers = {"margins": [0.5] * 11 + [5.0], "update_norms": [1.0] * 11 + [50.0]} | others
    [finding] = spike_findings(history(**numbers))
    assert finding.id == "spike-ahead"
    assert finding.step == 110
    assert finding.value > THRESHOLD == finding.threshold
    assert words in finding.sentence
    assert finding.do


def test_a_layer_that_moves_more_than_before_is_named():
    ratios = [[0.1, 0.1]] * 11 + [[0.1, 5.0]]
    rows = history([0.5] * 12, [1.0] * 11 + [50.0], layer_update_ratio=ratios)
    rows[-1]["layers"] = ["first", "second"]
    [finding] = spike_findings(rows)
    assert finding.layer == "second"


def test_a_loss_that_drifts_up_is_a_warning():
    """CUSUM: nothing of a loss that is noisy, and a warning long before it has doubled."""
    rng = np.random.default_rng(0)
    noise = 0.1 * rng.normal(size=300)
    rise = np.where(np.arange(300) < 200, 0.0, 0.01 * (np.arange(300) - 200))
    steady = [{"step": float(t), "loss": 1.0 + noise[t]} for t in range(300)]
    rising = [{"step": float(t), "loss": 1.0 + noise[t] + rise[t]} for t in range(300)]
    assert log_findings(steady) == []
    [finding] = log_findings(rising)
    assert finding.id == "spike-ahead"
    assert finding.quantities == ("loss",)
    assert 200 < finding.step < 280
    assert finding.value > finding.threshold


def test_the_drift_is_that_of_its_formula():
    losses = [1.0, 2.0] * 10 + [4.0, math.nan, 3.0]
    sums = drifts(losses)
    assert sums[9] == 0.0
    total = 0.0
    for t in range(10, 23):
        past = np.array(losses[:t])
        past = past[np.isfinite(past)]
        z = (losses[t] - past.mean()) / past.std() if math.isfinite(losses[t]) else 0.0
        total = max(total + z - 0.5, 0.0)
        assert sums[t] == pytest.approx(total)


def test_a_log_says_its_first_warning_and_its_first_nan():
    rows = history([], [1.0] * 11 + [50.0] * 3, loss=[1.0] * 13 + [math.nan])
    error, warning = log_findings(rows)
    assert (error.id, error.step) == ("not-finite", 130)
    assert (warning.id, warning.step) == ("spike-ahead", 110)
    assert [finding.id for finding in log_findings([{"step": 0.0}])] == ["unknown"]
