"""The risk of a spike: its rule, and what it is a finding of."""

import math

import pytest
from internals import (
    CONSTANT,
    THRESHOLD,
    USUAL,
    WEIGHTS,
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
