"""What is found in rows, at which steps: by hand, by simulated gradients, and live as afterwards."""

import math

import numpy as np
from internals import LiveJudge, judge, margin_finding_of

NAN = math.nan
NETWORK = {  # three dense layers, with biases
    f"Dense_{k}/{name}": f"float32[{shape}]"
    for k in range(3)
    for name, shape in [("bias", "4"), ("kernel", "4, 4")]
}
RECORD = {"layers": list(NETWORK), "parameters": NETWORK}


def rows_of(**series):
    """Rows of several quantities, one number or list of each at a step."""
    columns = zip(*series.values(), strict=True)
    return [
        {"step": 10 * k, **dict(zip(series, row, strict=True))} for k, row in enumerate(columns)
    ]


def found_live(rows, record):
    """Everything that a monitor tells while these rows are written."""
    live = LiveJudge()
    return [finding for row in rows for finding in live(row, record)]


def check(rows, expected, record=RECORD):
    """Compare ids and steps with those that are told live, and the first of each with `judge`."""
    live = found_live(rows, record)
    assert [(finding.id, finding.step) for finding in live] == expected, rows
    first = {}
    for finding in live:
        first.setdefault((finding.id, finding.severity, finding.layer), finding)
    assert set(judge(rows, record)) == set(first.values()), rows


NOISE = (1.2 + 0.12 * np.random.default_rng(0).standard_normal(300)).tolist()
BEYOND = [0.5, 1.6, 1.7, 1.8, 1.9, 1.2, 0.5]
MARGINS = [
    ({"margin": BEYOND}, [("margin-beyond-edge", 30), ("margin-at-edge", 50)]),
    # By the lower ends of the intervals.
    ({"margin": BEYOND, "margin_lower": [1.4] * 7}, [("margin-at-edge", 30)]),
    # Far beyond, a single one is enough.
    ({"margin": [0.5, 30.0, 0.5]}, [("margin-beyond-edge", 10)]),
    ({"margin": [0.5, 30.0, 0.5], "margin_lower": [0.2, 2.9, 0.2]}, []),
    ({"margin": [2.0, 1.0, 0.8, 0.7]}, []),  # a catapult
    ({"margin": NOISE}, [("margin-at-edge", 20)]),  # the edge of stability, with batches
    ({"margin": [NAN, 1.6, NAN, 1.7, NAN, 1.8, NAN]}, [("margin-beyond-edge", 50)]),
    ({"margin": [NAN] * 5}, []),
    # Flagged: young moments, and an eigenvalue that is not resolved.
    ({"margin": [30.0] * 4, "optimizer_status": [1] * 4}, []),
    ({"margin": [30.0] * 4, "margin_residual": [0.2] * 4}, []),
    ({"margin": [30.0] * 4, "margin_residual": [0.05] * 4}, [("margin-beyond-edge", 0)]),
]
STEP_ERRORS = [
    ({"step_error": [0.1, 0.7, 0.3, 0.6, 0.8]}, [40]),
    ({"step_error": [0.6, 0.2, 0.6, 0.2]}, [0]),  # the first one alone
    ({"step_error": [0.6, 0.2], "step_error_lower": [0.3, 0.1]}, []),
    ({"step_error": [0.1, 0.6, 0.8], "step_error_lower": [0.1, 0.35, 0.7]}, []),
    ({"step_error": [0.1, 0.6, NAN, 0.8, 0.7]}, [30]),
]
GROWTH = [
    ({"loss": [2.0, 1.0, 0.1, 1.0]}, []),
    ({"loss": [2.0, 1.0, 0.1, 1.2, 0.1]}, [30]),
    ({"loss": [2.0, 1.9, 2.8]}, []),
    ({"loss": [-1.0, -3.0, -2.0, 1.0]}, []),
    ({"loss": [1e-4, 1e-4, 2e-4]}, []),  # resumed where it had converged
    ({"gradient_norm": [1.0, 0.9, 0.8, 1e3]}, [30]),
    ({"gradient_norm": [30.0, 1e-3, 1e-7, *[1e-12] * 80, 3e-10]}, []),  # converged to rounding
    ({"trace": [1.0, 3.0, 2.0, 5000.0]}, []),
]


def test_numbers_that_are_too_large():
    for series, expected in MARGINS:
        check(rows_of(**series), expected)
    for name, cases in (("step-error-high", STEP_ERRORS), ("growth", GROWTH)):
        for series, steps in cases:
            check(rows_of(**series), [(name, step) for step in steps])
    assert [one.severity for one in judge(rows_of(step_error=[0.6, 0.8]), RECORD)] == [
        "warning",
        "info",
    ]


def test_a_loss_that_diverged_is_an_error():
    severities = {}
    for last in (30.0, 2.7e33):
        (finding,) = judge(rows_of(loss=[2.0, 1.0, last]), RECORD)
        severities[last] = finding.severity
    assert severities == {30.0: "warning", 2.7e33: "error"}


def test_not_finite_is_one_judgement():
    check(rows_of(status=[1, 1, 2, 2, 1, 2]), [("not-finite", 20)])
    check(rows_of(loss=[1.0, NAN], status=[1, 1]), [])  # it was not measured
    check(rows_of(loss=[1.0, NAN, NAN]), [("not-finite", 10)])  # checkpoints
    norms = [[0.1] * 6, [0.1, NAN, 0.1, 0.1, 0.1, 0.1], [0.1] * 6]
    rows = rows_of(
        status=[1, 4, 1],
        not_finite_steps=[0, 1, 1],
        not_finite_step=[NAN, 7, 7],
        layer_gradient=norms,
    )
    check(rows, [("not-finite", 7)])
    (finding,) = judge(rows, RECORD)
    assert (finding.severity, finding.layer) == ("warning", "Dense_0/kernel")
    (finding,) = judge(rows_of(status=[2]), RECORD)
    assert finding.severity == "error"


def record_of(**axes):
    """The record of a model with arrays of so many axes, under the names of its layers."""
    shapes = {name: ", ".join(["3"] * count) for name, count in axes.items()}
    parameters = {name: f"float32[{shape}]" for name, shape in shapes.items()}
    return {"layers": list(axes), "parameters": parameters}


LIVE = [0.2] * 6
FROZEN, TWO = [0.2, 0.0, 0.2, 0.2, 0.2, 0.2], [0.2, 0.0, 0.2, 0.0, 0.2, 0.2]
ATTENTION = record_of(**{"a/key/bias": 2, "a/key/kernel": 3, "a/out/kernel": 3})
LAYERS = [
    # Twice in a row, told once; one that is frozen does not hide another that dies.
    (RECORD, [LIVE, FROZEN, LIVE, FROZEN, FROZEN, FROZEN], [], [40]),
    (RECORD, [LIVE, FROZEN, FROZEN, FROZEN, TWO, TWO, TWO], [], [20, 50]),
    (RECORD, [FROZEN, [], FROZEN, []], [], [20]),
    # A run that has ended.
    (RECORD, [[0.0] * 6] * 3, [], []),
    # What an array of zeros multiplies has no gradient until it has moved.
    (record_of(lora_a=2, lora_b=2, head=2), [[0.0, 0.5, 0.5]] * 2, [[1, 0, 1]] * 2, []),
    # Biases by symmetry, but not the kernel with them.
    (ATTENTION, [[0.0, 0.5, 0.3]] * 3, [], []),
    (ATTENTION, [[0.0, 0.0, 0.3]] * 3, [], [10]),
]


def test_layers_that_die():
    for record, gradients, norms, steps in LAYERS:
        series = {"layer_gradient": gradients, "layer_parameter": norms}
        rows = rows_of(**{name: lists for name, lists in series.items() if lists})
        check(rows, [("dead-layer", step) for step in steps], record)
    rows = rows_of(layer_gradient=[[0.2, 0.2, 0.0, 0.0, 0.2, 0.2]] * 2)
    (finding,) = judge(rows, RECORD)
    assert finding.sentence.startswith("Layer Dense_1/kernel had a gradient of zero")


def test_batches_far_from_the_noise_scale():
    cases = [
        (64, 300.0, 900.0, "batch-below-noise"),
        (64, 300.0, math.inf, "batch-below-noise"),
        (64, 200.0, 900.0, None),
        (64, 10.0, 17.0, None),
        (64, 5.0, 15.0, "batch-above-noise"),
        (64, 5.0, NAN, None),  # null in a file, and infinite
        (None, 300.0, 900.0, None),
        (64, NAN, NAN, None),
    ]
    for batch, lower, upper, name in cases:
        scale = {"noise_scale": lower, "noise_scale_lower": lower, "noise_scale_upper": upper}
        rows = rows_of(**{key: [value] * 4 for key, value in scale.items()})
        check(rows, [(name, 20)] if name else [], {"batch_size": batch})


def test_a_gradient_of_another_loss():
    """Intervals by Fieller's rule, for a mean gradient with a relative error; no upper end from 1/2 on."""
    cases = [
        ([0.5, 0.5, 0.5, 0.5], 0.3, []),
        ([2.0, 2.0, 2.0, 2.0], 0.3, []),
        ([1.0, 5.0, 5.0, 5.0], 0.1, []),  # the first one is right
        ([5.0, NAN, 5.2, 5.1, 5.0], 0.1, [("gradient-scale", 30)]),
        ([50.0, 50.0, 50.0, 50.0], 0.6, [("gradient-scale", 20)]),
        ([0.1, 0.1, 0.1, 0.1], 0.6, []),
        ([0.1, 0.1, 0.1, 0.1], 0.2, [("gradient-scale", 20)]),
        ([5.0, 5.0, 0.1, 0.1], 0.1, []),
        ([-5.0] * 4, 0.1, []),
    ]
    for scales, error, expected in cases:
        lower = [scale / (1 + 2 * error) for scale in scales]
        upper = [scale / (1 - 2 * error) if error < 0.5 else math.inf for scale in scales]
        rows = rows_of(
            gradient_scale=scales, gradient_scale_lower=lower, gradient_scale_upper=upper
        )
        check(rows, expected, {"loss": "mse"})
    (finding,) = judge(
        rows_of(gradient_scale=[5.0, 5.2, 5.1], gradient_scale_lower=[4.9] * 3), {"loss": "mse"}
    )
    assert finding.sentence.startswith("The gradient is 5.1 times that of the loss mse")


def test_why_there_is_no_margin():
    record = {"optimizer_status": {"0": "It is read.", "3": "The optimizer is unknown."}}
    series = {"margin": [NAN] * 5, "optimizer_status": [3.0] * 5}
    check(rows_of(**series), [("no-margin", 20)], record)
    (finding,) = judge(rows_of(**series), record)
    assert finding.sentence.endswith("The optimizer is unknown.")
    (finding,) = judge(rows_of(margin=[NAN] * 3, optimizer_status=[0.0] * 3), record)
    assert finding.sentence.endswith("The loss has no curvature on the probe.")
    series["margin"] = [NAN, NAN, 0.5, NAN, NAN]
    check(rows_of(**series), [], record)


def test_a_run_in_which_all_second_moments_are_young_says_so():
    rows = rows_of(margin=[30.0, 3.0], optimizer_status=[1, 1])
    (finding,) = margin_finding_of(rows)
    assert (finding.id, finding.severity, finding.value) == ("no-margin", "info", 3.0)
    assert "have seen fewer steps" in finding.sentence
    (of_checkpoint,) = margin_finding_of([{"step": 5, "margin": 3.0, "margin_status": "It waits."}])
    assert of_checkpoint.sentence.endswith("3. It waits.")
    rows[-1]["optimizer_status"] = 0
    (finding,) = margin_finding_of(rows)
    assert (finding.id, finding.value) == ("margin", 3.0)


def test_what_comes_back_is_told_again():
    rows = rows_of(margin=[*BEYOND, *[0.5] * 100, *BEYOND])
    steps = [finding.step for finding in found_live(rows, {}) if "beyond" in finding.id]
    assert steps == [30, 1100]
    assert [finding.step for finding in judge(rows, {}) if "beyond" in finding.id] == [30]
    # A training that begins again begins anew.
    again = [row | {"step": row["step"] - 5} for row in rows_of(margin=BEYOND)]
    assert len(found_live([*rows_of(margin=BEYOND), *again], {})) == 4
