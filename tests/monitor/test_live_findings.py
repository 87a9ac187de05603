"""Live findings: what is found in which rows, at which steps, and who is told of it."""

import json
import math
import types
import warnings

import numpy as np
import pytest
from internals import Sink

from ntkdiag.monitor import (
    Finding,
    InMemory,
    JsonLines,
    read_findings,
    read_json_lines,
)

NAN, INF = math.nan, math.inf
NETWORK = {  # three dense layers, with biases
    f"Dense_{k}/{name}": f"float32[{shape}]"
    for k in range(3)
    for name, shape in [("bias", "4"), ("kernel", "4, 4")]
}
RECORD = {"call": "watch", "layers": list(NETWORK), "parameters": NETWORK}


def record_of(**axes):
    """The record of a model with arrays of so many axes, under the names of its layers."""
    shapes = {name: ", ".join(["3"] * count) for name, count in axes.items()}
    parameters = {name: f"float32[{shape}]" for name, shape in shapes.items()}
    return {"call": "watch", "layers": list(axes), "parameters": parameters}


def rows_of(**series):
    """Rows of several quantities, one number or list of each at a step."""
    columns = zip(*series.values(), strict=True)
    return [
        {"step": 10 * k, **dict(zip(series, row, strict=True))} for k, row in enumerate(columns)
    ]


def send_all(sink, rows, record=RECORD):
    for row in rows:
        values = {name: value for name, value in row.items() if name != "step"}
        sink.put(row["step"], values, record)


def found_in(rows, record=RECORD, on_finding=()):
    """The findings that a monitor with these records raises."""
    memory = InMemory()
    sink = Sink([memory], on_finding)
    send_all(sink, rows, record)
    sink.close()
    return memory.findings


# What is found

RISE = [0.9, 0.8, 0.84, 0.88, 0.92, 0.96, 1.0, 1.04, 1.08, 1.12]  # 8 times, in the last 3 above 1
NOISE = (1.2 + 0.15 * np.random.default_rng(0).standard_normal(300)).tolist()
MARGINS = [
    (RISE, [90]),
    ([*RISE, 1.16, 0.7, *RISE], [90, 210]),  # told once, and again after it was in order
    ([0.8, 0.84, NAN, 0.88, 0.92, 0.96, NAN, 1.0, 1.04, 1.08, 1.12], [100]),
    (RISE[2:], []),  # fewer rises
    ([0.91 + 0.02 * k for k in range(12)], []),  # from too near
    ([*RISE[:5], 0.92, *RISE[5:]], []),  # a pause
    ([0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0, 1.01, 1.02, 0.9], []),  # twice above 1
    ([0.89 + 0.0016 * k for k in range(73)], []),  # 64 records ago it was too near
    ([0.4, 0.5, 0.4, 628.0, 0.5], [30]),  # far above
    ([0.4, 0.5, NAN, 0.4, INF], [40]),
    ([0.4, 0.5, 628.0], []),  # of the start too little is known
    ([41.0, 41.0, 41.0, 41.0], [20]),
    ([201.0, 60.0, 20.0, 9.0, 4.0, 0.6], []),  # a cold start of Adam
    (NOISE, []),  # the edge of stability, with batches
    ([NAN] * 5, []),
]
STEP_ERRORS = [
    ({"step_error": [0.1, 0.7, 0.4, 0.6, 0.8]}, [40]),
    ({"step_error": [0.1, 0.6, 0.8], "step_error_lower": [0.1, 0.45, 0.7]}, []),
    ({"step_error": [0.1, 0.6, 0.8], "step_error_lower": [0.1, 0.55, 0.7]}, [20]),
    ({"step_error": [0.7, NAN, 0.7, 0.4, NAN, 0.7]}, [20]),
    ({"step_error": [0.7, 0.7, NAN, 0.7]}, [10, 30]),  # NaN is quiet, and does not interrupt
    ({"step_error": [0.5, 0.5, 0.5]}, []),
]
NOT_FINITE = [
    ({"status": [0, 1, 2, 2, 3, 2]}, [20, 50]),
    ({"loss": [1.0, 2.0, INF]}, [20]),
    ({"gradient_norm": [1.0, INF], "loss": [NAN, NAN]}, [10]),
    ({"loss": [1.0, 2.0, NAN], "status": [1, 1, 1]}, []),  # it was not measured
    # A hundredfold of the median of three earlier numbers at least.
    ({"loss": [1.0, 3.0, 2.0, 200.0]}, []),
    ({"loss": [1.0, NAN, 3.0, 2.0, 201.0]}, [40]),
    ({"loss": [1.0, 3.0, 1000.0]}, []),
    ({"loss": [1.0, 1.0, 90.0, 1.0, 101.0]}, [40]),  # of the median, not of the largest
    ({"gradient_norm": [1.0, 3.0, 2.0, 5000.0], "loss": [1.0] * 4}, [30]),
    ({"loss": [-1.0, -3.0, -2.0, 1.0]}, []),
    ({"trace": [1.0, 3.0, 2.0, 5000.0]}, []),
]


def test_what_is_found_at_which_steps():
    for name, cases in [
        ("margin-rises", [({"margin": margins}, steps) for margins, steps in MARGINS]),
        ("step-error-high", STEP_ERRORS),
        ("not-finite-near", NOT_FINITE),
    ]:
        for series, steps in cases:
            found = [(finding.id, finding.step) for finding in found_in(rows_of(**series))]
            assert found == [(name, step) for step in steps], series


LIVE = [0.2] * 6
FROZEN, TWO = [0.2, 0.0, 0.2, 0.2, 0.2, 0.2], [0.2, 0.0, 0.2, 0.0, 0.2, 0.2]
ATTENTION = record_of(**{"a/key/bias": 2, "a/key/kernel": 3, "a/out/kernel": 3})
BLOCKS = {**record_of(**{"b/bias": 2, "b/kernel": 3}), "layers": ["b/bias[0]", "b/kernel[0]"]}


LAYERS = [
    # Twice in a row, told once; one that is frozen does not hide another that dies.
    (RECORD, [LIVE, FROZEN, LIVE, FROZEN, FROZEN, FROZEN], [], [40]),
    (RECORD, [LIVE, FROZEN, FROZEN, FROZEN, TWO, TWO, TWO], [], [20, 50]),
    (RECORD, [FROZEN, [], FROZEN, []], [], [20]),
    # A run that has ended.
    (RECORD, [[0.0] * 6] * 3, [], []),
    # What an array of zeros multiplies has no gradient until it has moved.
    (record_of(lora_a=2, lora_b=2, head=2), [[0.0, 0.5, 0.5]] * 2, [[1, 0, 1]] * 2, []),
    # Biases by symmetry, but not the kernel with them; slices.
    (ATTENTION, [[0.0, 0.5, 0.3]] * 3, [], []),
    (ATTENTION, [[0.0, 0.0, 0.3]] * 3, [], [10]),
    (BLOCKS, [[0.5, 0.0]] * 3, [], [10]),
]


def test_layers_that_die():
    for record, gradients, norms, steps in LAYERS:
        series = {"layer_gradient": gradients, "layer_parameter": norms}
        rows = rows_of(**{name: lists for name, lists in series.items() if lists})
        found = [(finding.id, finding.step) for finding in found_in(rows, record)]
        assert found == [("dead-layer", step) for step in steps], series


def test_what_a_finding_says():
    ends = {"margin_lower": [1.0] * 10, "margin_upper": [1.25] * 10}
    (finding,) = found_in(rows_of(margin=RISE, **ends))
    assert finding == Finding(
        id="margin-rises",
        severity="warning",
        quantities=("margin",),
        sentence="The stability margin is 1.12 and has been above 1 in 3 measurements in a row: it has risen in 8 "
        "measurements in a row from 0.8.",
        value=1.12,
        interval=(1.0, 1.25),
        threshold=1.0,
        step=90,
        trust="Of 10 measurements while it trained.",
        do="Lower the learning rate or the momentum (beta), or lengthen the warm-up.",
        verify="Later margins stay below 1.",
    )
    (finding,) = found_in(rows_of(gradient_norm=[1.0, 3.0, 2.0, 500.0]))
    assert (finding.value, finding.threshold, finding.interval) == (500.0, 200.0, None)


# From records to those who are told. One of status 2 is a finding.

BROKEN = "warning step 0 not-finite-near: The measurement is NaN or infinite. Go back to a checkpoint before it,"


def test_a_finding_follows_its_record(tmp_path):
    path = tmp_path / "run.jsonl"
    sink = Sink([JsonLines(path)], ())
    send_all(sink, rows_of(status=[1, 2, 1]))
    sink.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["record", "step", "step", "finding", "step"]
    (finding,) = read_findings(path)
    assert (finding.id, finding.step) == ("not-finite-near", 10)
    assert lines[3] == {"finding": finding.to_dict()}
    assert read_json_lines(path) == ([RECORD], rows_of(status=[1, 2, 1]))


def test_a_callback_that_raises_is_said_once():
    told = []

    def post(finding):
        raise SystemExit(1)

    with pytest.warns(RuntimeWarning) as caught:
        found = found_in(rows_of(status=[2, 1, 2]), on_finding=[post, told.append])
    (warning,) = caught
    assert "on_finding=post failed with SystemExit: 1. This is said once" in str(warning.message)
    assert told == found
    assert len(told) == 2


def test_where_nobody_listens_a_finding_is_a_warning():
    writers = [types.SimpleNamespace(write=lambda step, values: None)]
    with pytest.warns(RuntimeWarning) as caught:
        send_all(Sink(writers, ()), rows_of(status=[2, 2]))
    assert [str(warning.message)[: len(BROKEN) + 9] for warning in caught] == [f"ntkdiag: {BROKEN}"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        send_all(Sink(writers, [print]), rows_of(status=[2]))  # a function listens
    assert caught == []


# What `watch` and `Monitor` are told


def line(params, x):
    return params["a"] * x
