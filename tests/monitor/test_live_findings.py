"""Live findings: each rule fires when it should and not before, and whom it tells does not hurt the run."""

import copy
import dataclasses
import io
import json
import logging
import math
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import Dispatcher, findings_of
from rich.console import Console

from ntkdiag import errors
from ntkdiag.monitor import (
    DeadLayer,
    Finding,
    Findings,
    InMemory,
    JsonLines,
    MarginAbove,
    Monitor,
    NaNNear,
    Rule,
    StepErrorAbove,
    Terminal,
    read_findings,
    read_json_lines,
    watch,
)
from ntkdiag.monitor import writer_thread as writer_threads

RECORD = {"call": "watch", "layers": ["conv1", "conv2", "head"]}
NAN = math.nan
EXAMPLE = Finding(
    id="loss-above",
    severity="warning",
    quantities=("loss",),
    sentence="The loss is 12.",
    value=12.0,
    threshold=10.0,
    step=7,
    do="Look at the last batch.",
)


def history(**series):
    """Rows of several quantities, one number or list of each at a step."""
    (length,) = {len(values) for values in series.values()}
    return [
        {"step": 10 * k, **{name: values[k] for name, values in series.items()}}
        for k in range(length)
    ]


def fired(rule, rows):
    """The steps at which a rule, asked about every record, sees something."""
    return [row["step"] for k, row in enumerate(rows) if rule.check(rows[: k + 1]) is not None]


def send_all(dispatcher, rows, record=RECORD):
    for row in rows:
        values = {name: value for name, value in row.items() if name != "step"}
        dispatcher.send(row["step"], values, record)


def found_in(rows, record=RECORD, **options):
    """The findings that a monitor with these records raises."""
    memory = InMemory()
    dispatcher = Dispatcher([memory], Findings(**options))
    send_all(dispatcher, rows, record)
    dispatcher.close()
    return memory.findings


@dataclasses.dataclass(frozen=True)
class LossAbove(Rule):
    """A rule of the user's."""

    threshold: float = 10.0

    def check(self, history):
        loss = history[-1].get("loss", math.nan)
        if not loss > self.threshold:
            return None
        return dataclasses.replace(
            EXAMPLE,
            sentence=f"The loss is {loss:.3g}.",
            value=loss,
            threshold=self.threshold,
            step=history[-1]["step"],
        )


# Rules


def test_a_run_at_the_edge_of_stability_is_no_finding():
    """It hovers about 1, above it for long: noise of batches, or cycles of small instabilities."""
    rng = np.random.default_rng(0)
    margins = 1.2 + 0.15 * rng.standard_normal(1000)
    assert fired(MarginAbove(), history(margin=margins.tolist())) == []
    assert fired(MarginAbove(rises=0), history(margin=margins.tolist())) != []
    cycle = np.concatenate([np.linspace(0.95, 1.1, 12), np.linspace(1.1, 0.95, 3)[1:]])
    assert fired(MarginAbove(), history(margin=np.tile(cycle, 20).tolist())) == []


def test_a_catapult_is_no_finding():
    assert fired(MarginAbove(), history(margin=[0.5, 1.9, 1.4, 0.8, 0.7, 0.7])) == []
    # A cold start of Adam, and a descent that begins at too high a rate.
    assert fired(MarginAbove(), history(margin=[201.0, 60.0, 20.0, 9.0, 4.0, 0.6, 0.5])) == []


def test_a_margin_that_rises_through_one_is_a_finding():
    margins = [0.9, 0.8, 0.84, 0.88, 0.92, 0.96, 1.0, 1.04, 1.08, 1.12, 1.16, 0.7]
    rows = history(margin=margins)
    assert fired(MarginAbove(), rows) == [90, 100]  # in order again as soon as it falls
    assert MarginAbove().check(rows[:10]) == Finding(
        id="margin-rises",
        severity="warning",
        quantities=("margin",),
        sentence="The stability margin is 1.12 and has been above 1 in 3 measurements in a row: it has risen in 8 "
        "measurements in a row from 0.8.",
        value=1.12,
        threshold=1.0,
        step=90,
        trust="Of 10 measurements while it trained.",
        do="Lower the learning rate or the momentum (beta), or lengthen the warm-up.",
        verify="Later margins stay below 1.",
    )
    # Fewer rises, a rise from 0.9 only, a pause on the way, too few above.
    assert fired(MarginAbove(), rows[4:11]) == []
    assert fired(MarginAbove(calm=0.8), rows) == []
    assert fired(MarginAbove(), history(margin=[*margins[:5], 0.92, *margins[5:11]])) == []
    assert fired(MarginAbove(times=4), rows) == [100]
    assert fired(MarginAbove(threshold=1.05), rows) == [100]


def test_a_margin_far_above_one_is_a_finding():
    jump = history(margin=[0.4, 0.5, 0.4, 628.0, 0.5])
    assert fired(MarginAbove(), jump) == [30]
    assert (
        MarginAbove().check(jump[:4]).sentence
        == "The stability margin is 628, more than 5 times 1."
    )
    assert (
        fired(MarginAbove(), history(margin=[0.4, 0.5, 628.0])) == []
    )  # of the start too little is known
    assert fired(MarginAbove(), history(margin=[41.0, 41.0, 41.0, 41.0])) == [20, 30]
    assert fired(MarginAbove(), history(margin=[0.4, 0.5, 0.4, 4.9])) == []
    assert fired(MarginAbove(), history(margin=[0.4, 0.5, 0.4, math.inf])) == [30]


def test_without_rises_a_margin_has_to_stay_above():
    rows = history(margin=[0.9, 1.1, 1.2, 1.3, 1.5], margin_lower=[0.8, 1.0, 1.1, 1.2, 1.4])
    assert fired(MarginAbove(rises=0), rows) == [30, 40]
    assert fired(MarginAbove(threshold=1.25, times=1, rises=0), rows) == [30, 40]
    assert MarginAbove(rises=0).check(rows).sentence == (
        "The stability margin is 1.5 and has been above 1 in 3 measurements in a row."
    )


def test_margins_that_were_not_measured_neither_count_nor_interrupt():
    rows = history(margin=[1.1, NAN, 1.2, NAN, 1.3], margin_lower=[1.05, NAN, NAN, NAN, 1.2])
    assert fired(MarginAbove(rises=0), rows) == [40]
    margins = [0.8, 0.84, NAN, 0.88, 0.92, 0.96, NAN, 1.0, 1.04, 1.08, 1.12]
    assert fired(MarginAbove(), history(margin=margins)) == [100]
    assert fired(MarginAbove(), history(margin=[NAN] * 5)) == []
    assert fired(MarginAbove(), history(loss=[1.0] * 5)) == []


def test_steps_that_leave_the_linear_region():
    rows = history(
        step_error=[0.1, 0.7, 0.4, 0.6, 0.8], step_error_lower=[0.1, 0.6, 0.3, 0.45, 0.7]
    )
    assert fired(StepErrorAbove(), rows) == []
    assert fired(StepErrorAbove(), history(step_error=[0.1, 0.7, 0.4, 0.6, 0.8])) == [40]
    assert fired(StepErrorAbove(threshold=0.4), rows) == [40]
    assert StepErrorAbove().check([*rows, {"step": 50, "step_error": NAN}]) is None  # told before
    finding = StepErrorAbove(times=1).check(rows)
    assert (finding.id, finding.quantities) == ("step-error-high", ("step_error",))
    assert (finding.value, finding.threshold) == (0.8, 0.5)
    assert finding.interval[0] == 0.7
    assert "Lower the learning rate or clip the gradient" in finding.do


@pytest.mark.parametrize(
    ("series", "steps"),
    [
        ({"status": [1, 1, 2, 2, 1]}, [20, 30]),
        ({"loss": [1.0, 2.0, math.inf]}, [20]),
        ({"loss": [1.0, 2.0, NAN]}, [20]),
        ({"gradient_norm": [1.0, 2.0, NAN], "loss": [NAN, NAN, NAN]}, [20]),
        # A loss that is measured now and then, or never, or beside a status that says that all is well.
        ({"loss": [1.0, 2.0, NAN], "status": [1, 1, 1]}, []),
        ({"loss": [NAN, NAN, NAN]}, []),
        ({"loss": [NAN, 1.0, NAN, 1.0]}, []),
        # A hundredfold of the median of three earlier numbers at least.
        ({"loss": [1.0, 3.0, 2.0, 200.0]}, []),
        ({"loss": [1.0, 3.0, 2.0, 201.0]}, [30]),
        ({"loss": [1.0, 3.0, 1000.0]}, []),
        ({"gradient_norm": [1.0, 3.0, 2.0, 5000.0]}, [30]),
        ({"loss": [-1.0, -3.0, -2.0, 1.0]}, []),
        ({"trace": [1.0, 3.0, 2.0, 5000.0]}, []),
    ],
)
def test_nan_is_near(series, steps):
    assert fired(NaNNear(), history(**series)) == steps


def test_what_a_finding_of_nan_says():
    growth = NaNNear(factor=10).check(history(gradient_norm=[1.0, 3.0, 2.0, 50.0]))
    assert (growth.id, growth.quantities) == ("not-finite-near", ("gradient_norm",))
    assert (growth.value, growth.threshold) == (50.0, 20.0)
    assert growth.trust == "Of 4 measurements while it trained."
    assert growth.sentence == (
        "The gradient norm is 50, more than 10 times its median in the last measurements."
    )
    status = NaNNear().check(history(status=[2]))
    assert (status.id, status.quantities, status.value) == ("not-finite-near", ("status",), 2)
    assert status.sentence == "The measurement is NaN or infinite."
    loss = NaNNear().check(history(loss=[1.0, NAN]))
    assert loss.sentence == "The loss is NaN or infinite."
    assert loss.to_dict()["value"] is None
    assert loss.to_dict()["threshold"] is None


def test_a_divergence_is_seen_before_its_loss_is_nan():
    """Gradient descent on a quadratic at 1.05 times the largest stable rate, in float32."""
    rate, theta, rows = np.float32(2.1), np.float32(1e-2), []
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(2000):
            if step % 10 == 0:
                loss, norm = float(theta * theta / 2), float(abs(theta))
                rows.append({"step": step, "margin": 1.05, "loss": loss, "gradient_norm": norm})
            theta = theta - rate * theta
    first_infinite = next(row["step"] for row in rows if not math.isfinite(row["loss"]))
    findings = found_in(rows)
    assert {finding.id for finding in findings} == {"not-finite-near"}
    # The loss grows by 1.1^20 = 6.7 a measurement: four of them are a hundredfold of the median.
    assert all(finding.step < first_infinite / 5 for finding in findings)


def test_a_layer_that_dies():
    alive, dead = [1.0, 2.0, 3.0], [1.0, 0.0, 3.0]
    rows = history(layer_gradient=[alive, dead, alive, dead, dead, dead])
    rows = [{**row, "layers": RECORD["layers"]} for row in rows]
    assert fired(DeadLayer(), rows) == [40]  # said when it dies, once
    finding = DeadLayer().check(rows[:5])
    assert (finding.id, finding.layer) == ("dead-layer", "conv2")
    assert (finding.quantities, finding.value, finding.threshold) == (("layer_gradient",), 0.0, 0.0)
    assert finding.trust == "Of 2 measurements while it trained."
    assert finding.sentence == (
        "Layer conv2 had a gradient of zero in two measurements in a row while other layers train."
    )


def test_a_layer_without_a_share_of_the_trace():
    rows = history(layer_trace=[[0.5, 0.5, 2e-7], [0.5, 0.5, 5e-7]])
    finding = DeadLayer().check(rows)
    assert (finding.quantities, finding.value, finding.threshold) == (("layer_trace",), 5e-7, 1e-6)
    assert finding.layer == "number 2"
    assert finding.sentence.startswith("Layer number 2 had less than 1e-06 of the kernel's trace")
    assert DeadLayer(share=1e-7).check(rows) is None


def test_layers_of_a_run_that_has_ended_or_was_not_measured_are_not_dead():
    assert fired(DeadLayer(), history(layer_gradient=[[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])) == []
    assert fired(DeadLayer(), history(layer_trace=[[NAN, NAN], [NAN, NAN]])) == []
    assert (
        fired(DeadLayer(), history(layer_gradient=[[0.0, 1.0]])) == []
    )  # a layer of zeros at the start
    assert fired(DeadLayer(), history(loss=[1.0, 1.0])) == []
    rows = [*history(layer_gradient=[[0.0, 1.0], [0.0, 1.0]]), {"step": 20, "loss": 1.0}]
    assert fired(DeadLayer(), rows) == [10]


def test_a_frozen_layer_does_not_hide_one_that_dies():
    frozen, dead = [0.0, 2.0, 3.0], [0.0, 0.0, 3.0]
    findings = found_in(history(layer_gradient=[frozen, frozen, frozen, dead, dead, dead]))
    assert [(finding.step, finding.sentence.split(" had")[0]) for finding in findings] == [
        (10, "Layer conv1"),
        (40, "Layer conv2"),
    ]


NETWORK = {
    "layers": [
        "Dense_0/bias",
        "Dense_0/kernel",
        "Dense_1/bias",
        "Dense_1/kernel",
        "Dense_2/bias",
        "Dense_2/kernel",
    ],
    "layer_axes": [1.0, 2.0, 1.0, 2.0, 1.0, 2.0],
}
NO_LIFE = [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]  # a middle layer that is dead, and what it cuts off
ALIVE = [0.2, 0.2, 0.2, 0.2, 0.2, 0.2]


def test_a_layer_that_is_dead_from_the_first_measurement_on():
    """Neither the gradient of the batch nor the trace of the probe knows of it."""
    row = {"step": 0, **NETWORK, "layer_gradient": NO_LIFE, "layer_trace": NO_LIFE}
    row["layer_parameter"] = [0.0, 1.0, 100.0, 1.0, 0.0, 1.0]  # biases of zero block nothing
    finding = DeadLayer().check([row])
    assert finding.sentence == (
        "Layers Dense_0, Dense_1, Dense_2/kernel had a gradient of zero and no share of the kernel's trace while "
        "other layers train."
    )
    assert finding.layer == "Dense_0/bias"  # the first of them
    assert finding.quantities == ("layer_gradient", "layer_trace")
    assert finding.trust == "Of one measurement while it trained."
    again = {**row, "step": 10}
    assert fired(DeadLayer(), [row, again, again]) == [0]  # told of once
    # In the batch alone, it may be the batch.
    of_batch = {**row, "layer_trace": ALIVE}
    assert fired(DeadLayer(), [of_batch, {**of_batch, "step": 10}]) == [10]
    # What a matrix of zeros multiplies has no gradient until that has moved.
    low_rank = {"step": 0, "layers": ["lora_a", "lora_b", "head"], "layer_axes": [2.0, 2.0, 2.0]}
    low_rank |= {name: [0.0, 0.5, 0.5] for name in ("layer_gradient", "layer_trace")}
    low_rank["layer_parameter"] = [1.0, 0.0, 1.0]
    moved = {
        **low_rank,
        "step": 10,
        "layer_gradient": [0.1, 0.5, 0.5],
        "layer_trace": [0.1, 0.5, 0.4],
    }
    assert fired(DeadLayer(), [low_rank, moved, moved]) == []
    assert fired(DeadLayer(), [{**low_rank, "layer_parameter": [1.0, 1.0, 1.0]}]) == [0]


@pytest.mark.parametrize(
    ("layers", "axes"),
    [
        # Keys of an attention, whose bias has the axes of heads; a bias before a normalisation.
        (["attention/key/bias", "attention/key/kernel", "attention/out/kernel"], [2, 3, 3]),
        (["Conv_0/bias", "Conv_0/kernel", "BatchNorm_0/scale"], [1, 4, 1]),
        # All arrays in one dictionary; a bias that is a module of its own; slices of a scan.
        (["bk", "wk", "wo"], [1, 2, 2]),
        (["bias", "dense/kernel", "norm/scale"], [1, 2, 1]),
        (["blocks/bias[0]", "blocks/kernel[0]", "blocks/kernel[1]"], [1, 2, 2]),
        # Without axes the names of modules are all there is.
        (["attention/key/bias", "attention/key/kernel", "attention/out/kernel"], None),
    ],
)
def test_a_bias_that_is_dead_by_symmetry_is_no_finding(layers, axes):
    of_axes = {} if axes is None else {"layer_axes": [float(count) for count in axes]}
    rows = [
        {
            "step": 10 * k,
            "layers": layers,
            **of_axes,
            "layer_gradient": [0.0 if k % 2 else 1e-9, 0.5, 0.3],
            "layer_trace": [1e-15, 0.5, 0.5],
            "layer_parameter": [0.0, 1.0, 1.0],
        }
        for k in range(4)
    ]
    assert fired(DeadLayer(), rows) == []
    # The kernel with it is another thing.
    dead = [
        {**row, "layer_gradient": [0.0, 0.0, 0.3], "layer_trace": [0.0, 0.0, 1.0]} for row in rows
    ]
    assert fired(DeadLayer(), dead)[:1] == [0]


def test_modules_that_are_joined_are_no_biases():
    """Beyond 512 layers whole modules are layers: "block_0/mlp" dies beside "block_0/attention"."""
    joined = {"layers": ["block_0/mlp", "block_0/attention"], "layer_axes": [NAN, NAN]}
    rows = [{"step": 10 * k, **joined, "layer_gradient": [0.0, 1.0]} for k in range(2)]
    assert fired(DeadLayer(), rows) == [10]


def test_rules_are_told_how_many_axes_layers_have():
    seen = []

    class Looking(Rule):
        def check(self, history):
            seen.append(history[-1]["layer_axes"])

    parameters = {
        "dense/kernel": "float32[3, 4]",
        "dense/scale": "float32[]",
        "blocks/bias": "float32[2, 4]",
    }
    layers = ["dense/kernel", "dense/scale", "blocks/bias[0]", "blocks/bias[1]", "head"]
    dispatcher = Dispatcher([], Findings(rules=[Looking()]))
    dispatcher.send(0, {"loss": 1.0}, {"call": "watch", "layers": layers, "parameters": parameters})
    dispatcher.close()
    np.testing.assert_array_equal(seen, [[2.0, 0.0, 1.0, 1.0, NAN]])


def test_many_dead_layers_are_counted():
    values = [0.0] * 5 + [1.0]
    finding = DeadLayer().check(history(layer_gradient=[values, values]))
    assert finding.sentence.startswith("Layers number 0, number 1, number 2 and 2 more had")


@pytest.mark.parametrize("rule", Findings().rules)
def test_rules_say_nothing_of_what_is_not_there(rule):
    assert rule.check([{"step": 0}]) is None
    names = ("margin", "step_error", "loss", "gradient_norm", "participation_ratio", "status")
    rows = [{"step": step, **dict.fromkeys(names, NAN)} for step in range(5)]
    assert fired(rule, rows) == []


def test_a_healthy_run_is_no_finding():
    rng = np.random.default_rng(0)
    steps = np.arange(200)
    loss = 2.3 * np.exp(-steps / 40) * np.exp(0.3 * rng.standard_normal(200))
    rows = history(
        margin=(1 - np.exp(-steps / 20)).tolist(),
        step_error=(0.2 + 0.05 * rng.standard_normal(200)).tolist(),
        loss=loss.tolist(),
        gradient_norm=np.sqrt(loss).tolist(),
        participation_ratio=(10 - 4 * steps / 200).tolist(),
        layer_gradient=rng.uniform(0.1, 1.0, size=(200, 3)).tolist(),
        status=[1] * 200,
    )
    assert found_in(rows) == []


# From records to findings


def test_a_rule_is_silent_until_it_was_quiet():
    rows = history(loss=[1.0, 20.0, 30.0, 40.0, 5.0, 20.0, 20.0, 1.0])
    findings = found_in(rows, rules=[LossAbove()])
    assert [(finding.step, finding.value) for finding in findings] == [(10, 20.0), (50, 20.0)]


def test_the_default_rules_do_not_storm():
    rows = history(margin=[15.0] * 100, step_error=[0.9] * 100, status=[2] * 100)
    findings = found_in(rows)
    assert sorted(finding.id for finding in findings) == [
        "margin-rises",
        "not-finite-near",
        "step-error-high",
    ]


def test_a_measurement_that_comes_twice_counts_once():
    rows, rules = history(margin=[1.1, 1.2, 1.3]), [MarginAbove(rises=0)]
    assert found_in([rows[0]] * 8 + [rows[1]] * 8, rules=rules) == []
    repeated = [row for row in rows for _ in range(8)]
    assert [finding.step for finding in found_in(repeated, rules=rules)] == [20]


def test_seeds_that_share_their_steps_have_histories_of_their_own():
    margins = {0: [1.5, 0.5, 0.4], 10: [1.5, 0.5, 1.3], 20: [0.9, 0.5, 1.3], 30: [0.9, 0.5, 1.4]}
    rows = [{"step": step, "margin": margin} for step, row in margins.items() for margin in row]
    rules = [MarginAbove(rises=0)]
    findings = found_in(rows, rules=rules)
    assert [(finding.step, finding.value) for finding in findings] == [(30, 1.4)]  # the third seed
    everywhere = [{"step": step, "margin": 2.0 + k} for step in (0, 10, 20, 30) for k in range(3)]
    assert [finding.step for finding in found_in(everywhere, rules=rules)] == [20]


def test_a_step_that_goes_back_begins_anew():
    rows = history(margin=[1.1, 1.2])
    assert found_in([*rows, *rows, *rows], rules=[MarginAbove(rises=0)]) == []


def test_rules_see_the_names_that_writers_see():
    seen = []

    class Looking(Rule):
        def check(self, history):
            seen.append(history[-1])

    dispatcher = Dispatcher([], Findings(rules=[Looking()]))
    record = {"layers": ["w"], "parameters": {"w": "bfloat16[3, 2]"}, "dtype": "float32"}
    dispatcher.send(3, {"loss": 1.0, "margin": 0.5}, record)
    dispatcher.close()
    of_record = {"layers": ["w"], "layer_axes": [2.0]}
    assert seen == [{"step": 3, **of_record, "loss": 1.0, "margin": 0.5}]


def test_rules_look_back_upon_the_last_records():
    lengths = []

    class Counting(Rule):
        def check(self, history):
            lengths.append((len(history), history[-1]["step"], history[0]["step"]))

    dispatcher = Dispatcher([], Findings(rules=[Counting()], history=4))
    send_all(dispatcher, history(loss=[1.0] * 6))
    dispatcher.close()
    assert lengths == [(1, 0, 0), (2, 10, 0), (3, 20, 0), (4, 30, 0), (4, 40, 10), (4, 50, 20)]


def test_a_finding_follows_its_record(tmp_path):
    path = tmp_path / "run.jsonl"
    dispatcher = Dispatcher([JsonLines(path)], Findings(rules=[LossAbove()]))
    rows = history(loss=[1.0, 20.0, 2.0])
    send_all(dispatcher, rows)
    dispatcher.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["record", "step", "step", "finding", "step"]
    finding = dataclasses.replace(EXAMPLE, sentence="The loss is 20.", value=20.0, step=10)
    assert lines[3] == {"finding": finding.to_dict()}
    assert read_findings(path) == [finding]
    records, read = read_json_lines(path)
    assert records == [RECORD]
    assert read == [{"step": row["step"], "loss": row["loss"]} for row in rows]


def test_findings_are_read_whatever_else_is_in_the_file(tmp_path):
    path = tmp_path / "run.jsonl"
    writer = JsonLines(path)
    writer.write(0, {"finding": 1.0})  # a number of that name
    writer.finding(dataclasses.replace(EXAMPLE, value=NAN, threshold=math.inf))
    path.write_text(path.read_text() + '[1]\n{"finding": {"id": "lo')
    (finding,) = read_findings(path)
    assert finding.value is None  # JSON has neither NaN
    assert finding.threshold is None  # nor infinity
    assert finding.sentence == EXAMPLE.sentence
    assert [row["finding"] for row in read_json_lines(path)[1]] == [1.0]


def test_the_line_on_the_terminal():
    text = io.StringIO()
    dispatcher = Dispatcher(
        [Terminal(console=Console(file=text, width=40))], Findings(rules=[LossAbove()])
    )
    send_all(dispatcher, history(loss=[20.0]))
    dispatcher.close()
    assert text.getvalue().splitlines() == [
        "step 0  loss 20",
        "warning step 0 loss-above: The loss is 20. Look at the last batch.",
    ]


def test_a_finding_is_one_line_and_no_markup():
    text = io.StringIO()
    finding = dataclasses.replace(EXAMPLE, sentence="[bold]Layer[/bold]\n  number 3.")
    Terminal(console=Console(file=text, width=40)).finding(finding)
    assert text.getvalue() == (
        "warning step 7 loss-above: [bold]Layer[/bold] number 3. Look at the last batch.\n"
    )


def test_a_finding_is_plain_json():
    finding = dataclasses.replace(
        EXAMPLE, value=np.float32(1.5), interval=(np.float32(1.25), NAN), step=np.int32(7)
    )
    assert json.loads(json.dumps(finding.to_dict())) == {
        "id": "loss-above",
        "severity": "warning",
        "quantities": ["loss"],
        "sentence": "The loss is 12.",
        "value": 1.5,
        "interval": [1.25, None],
        "threshold": 10.0,
        "step": 7,
        "layer": None,
        "trust": "",
        "do": "Look at the last batch.",
        "verify": "",
    }


# Whom a finding is told


def test_callbacks_are_called_with_the_finding():
    told, also_told = [], []
    rows = history(loss=[20.0, 1.0, 30.0])
    findings = found_in(rows, rules=[LossAbove()], on_finding=[told.append, also_told.append])
    assert told == also_told == findings
    assert [finding.value for finding in told] == [20.0, 30.0]


def test_a_callback_that_raises_is_said_once():
    told = []

    def post(finding):
        raise ConnectionError("no network.")

    rows = history(loss=[20.0, 1.0, 30.0])
    with pytest.warns(RuntimeWarning) as caught:
        findings = found_in(rows, rules=[LossAbove()], on_finding=[post, told.append])
    assert [str(warning.message) for warning in caught] == [
        "ntkdiag: on_finding=post failed with ConnectionError: no network. This is said once, and it is tried "
        "again at the next one; training goes on."
    ]
    assert len(findings) == len(told) == 2


def test_a_callback_that_exits_does_not_end_training():
    def leave(finding):
        raise SystemExit(1)

    with pytest.warns(RuntimeWarning, match="on_finding=leave failed with SystemExit: 1"):
        assert len(found_in(history(loss=[20.0]), rules=[LossAbove()], on_finding=leave)) == 1


def test_a_callback_that_hangs_holds_up_neither_training_nor_records():
    released = threading.Event()
    memory = InMemory()
    dispatcher = Dispatcher(
        [memory], Findings(rules=[LossAbove()], on_finding=lambda finding: released.wait(60))
    )
    send_all(dispatcher, history(loss=[20.0]))
    begun = time.monotonic()
    send_all(dispatcher, [{"step": step, "loss": 1.0} for step in range(10, 60)])
    assert time.monotonic() - begun < writer_threads.PATIENCE
    assert len(memory.rows) == 51
    assert len(memory.findings) == 1  # the writers are told first
    behind = "the writer FindingWriter has 52 records to write 0.2 s after the end"
    with pytest.warns(RuntimeWarning, match=behind):
        dispatcher.close(seconds=0.2)
    released.set()
    dispatcher.close()


def test_training_waits_a_moment_until_a_finding_is_told():
    told = []

    class Slow(InMemory):
        def finding(self, finding):
            time.sleep(0.2)
            told.append(finding.step)

    send_all(Dispatcher([Slow()], Findings(rules=[LossAbove()])), history(loss=[20.0]))
    assert told == [0]


def test_the_last_finding_comes_before_the_writers_are_closed(monkeypatch):
    class Slow(LossAbove):
        def check(self, history):
            time.sleep(0.3)
            return super().check(history)

    calls = []

    class Noting:
        def write(self, step, values):
            calls.append("write")

        def finding(self, finding):
            calls.append("finding")

        def close(self):
            calls.append("close")

    monkeypatch.setattr("ntkdiag.monitor.dispatcher.PATIENCE", 0.01)
    dispatcher = Dispatcher([Noting()], Findings(rules=[Slow()]))
    send_all(dispatcher, history(loss=[20.0, 1.0]))
    dispatcher.close()
    assert calls == ["write", "write", "finding", "close"]


@pytest.mark.slow
def test_the_end_of_the_interpreter_waits_for_the_last_finding(tmp_path):
    script = textwrap.dedent(
        """
        import sys, time
        from ntkdiag.monitor import Finding, Findings, JsonLines, Rule
        from ntkdiag.monitor.dispatcher import Dispatcher

        class Slow(Rule):
            def check(self, history):
                time.sleep(1.5)
                return Finding("slow", "warning", ("loss",), "It is.", value=2.0, step=3)

        Dispatcher([JsonLines(sys.argv[1])], Findings(rules=[Slow()])).send(3, {}, {"call": "watch"})
        """
    )
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", script, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr == ""
    assert [finding.step for finding in read_findings(path)] == [3]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: True, "TypeError: check(history) returned a bool and no Finding"),
    ],
)
def test_a_rule_that_fails_is_said_once_and_stops_no_other(answer, reason):
    class Faulty(Rule):
        def check(self, history):
            return answer()

    rows = history(loss=[1.0, 20.0])
    with pytest.warns(RuntimeWarning) as caught:
        findings = found_in(rows, rules=[Faulty(), LossAbove()])
    assert [str(warning.message) for warning in caught] == [
        f"ntkdiag: the rule Faulty failed with {reason}. This is said once, and it is tried again at the next "
        "one; training goes on."
    ]
    assert [finding.step for finding in findings] == [10]


def test_a_writer_that_fails_in_its_finding_is_tried_again():
    class Failing(InMemory):
        def finding(self, finding):
            raise OSError("disk full")

    writer = Failing()
    dispatcher = Dispatcher([writer], Findings(rules=[LossAbove()]))
    said = r"the writer Failing failed in finding\(\) with OSError: disk full. This finding is lost to it. "
    with pytest.warns(RuntimeWarning, match=said):
        send_all(dispatcher, history(loss=[20.0, 1.0]))
    assert len(writer.rows) == 2


class WithoutFindings:
    def write(self, step, values):
        pass


@pytest.mark.parametrize("writers", [[], [WithoutFindings()]])
def test_where_nobody_listens_a_finding_is_a_warning(writers):
    dispatcher = Dispatcher(writers, Findings(rules=[LossAbove()]))
    with pytest.warns(RuntimeWarning) as caught:
        send_all(dispatcher, history(loss=[20.0, 30.0, 1.0, 40.0]))
    assert [str(warning.message) for warning in caught] == [
        "ntkdiag: warning step 0 loss-above: The loss is 20. Look at the last batch.",
        "ntkdiag: warning step 30 loss-above: The loss is 40. Look at the last batch.",
    ]


def test_the_warning_of_a_finding_does_not_raise_where_warnings_are_errors(caplog):
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, logger="ntkdiag"):
        warnings.simplefilter("error")
        send_all(Dispatcher([], Findings(rules=[LossAbove()])), history(loss=[20.0]))
    assert caplog.messages == [
        "ntkdiag: warning step 0 loss-above: The loss is 20. Look at the last batch."
    ]


def test_who_listens_is_told_without_a_warning():
    rows = history(loss=[20.0])
    findings = Findings(rules=[LossAbove()], on_finding=[lambda finding: None])
    send_all(Dispatcher([], findings), rows)  # a warning is an error
    send_all(Dispatcher([InMemory()], Findings(rules=[LossAbove()])), rows)


def test_an_dispatcher_without_findings_raises_none():
    memory = InMemory()
    send_all(Dispatcher([memory]), history(status=[2, 2]))
    assert memory.findings == []


def test_monitors_share_no_history_though_they_share_their_findings():
    findings = Findings(rules=[MarginAbove(times=2, rises=0)])
    first, second = InMemory(), InMemory()
    for memory in (first, second):
        send_all(Dispatcher([memory], findings), history(margin=[1.5]))
    assert first.findings == second.findings == []


def test_an_dispatcher_can_be_copied_with_its_history():
    memory = InMemory()
    dispatcher = Dispatcher([memory], Findings(rules=[MarginAbove(times=2, rises=0)]))
    send_all(dispatcher, history(margin=[1.5]))
    copied = copy.deepcopy(dispatcher)
    copied.send(10, {"margin": 1.5}, RECORD)
    (copy_of_memory,) = copied.writers
    assert len(copy_of_memory.findings) == 1
    assert memory.findings == []


# Arguments


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Findings(rules=[MarginAbove]),
            "rules=...): expected objects with a method check(history); got the class MarginAbove. "
            "ntkdiag.monitor has MarginAbove(), StepErrorAbove(), NaNNear() and DeadLayer().",
        ),
        (
            lambda: Findings(rules=(3,)),
            "rules=...): expected objects with a method check(history); got a int. "
            "ntkdiag.monitor has MarginAbove(), StepErrorAbove(), NaNNear() and DeadLayer().",
        ),
        (
            lambda: Findings(on_finding=3),
            "on_finding=...): expected functions of one finding; got a int. Findings(on_finding=print) prints "
            "each finding.",
        ),
        (
            lambda: Findings(history=0),
            "history=...): expected a positive integer number of records; got 0. Findings(history=64) keeps the "
            "last 64.",
        ),
        (
            lambda: Findings(history=2),
            "history=...): expected at least the 3 records that MarginAbove looks at; got 2. "
            "Keep more records, or ask for fewer in a row.",
        ),
        (
            lambda: MarginAbove(times=0),
            "MarginAbove(times=0): expected `times` as a positive integer; got 0. It counts measurements in a row.",
        ),
        (
            lambda: MarginAbove(rises=-1),
            "MarginAbove(rises=-1): expected `rises` as an integer, 0 or more; got -1. It counts measurements in "
            "a row.",
        ),
        (
            lambda: MarginAbove(far=0),
            "MarginAbove(far=0): expected a positive `far`; got 0. Its units stand in the docstring.",
        ),
        (
            lambda: MarginAbove(threshold=-1.0),
            "MarginAbove(threshold=-1.0): expected a positive `threshold`; got -1.0. Its units stand in the docstring.",
        ),
        (
            lambda: StepErrorAbove(times=1.5),
            "StepErrorAbove(times=1.5): expected `times` as a positive integer; got 1.5. It counts measurements "
            "in a row.",
        ),
        (
            lambda: NaNNear(factor=1.0),
            "NaNNear(factor=1.0): expected a factor above 1; got 1.0. NaNNear(factor=100) fires at a hundredfold of "
            "the median.",
        ),
        (
            lambda: DeadLayer(share=0.0),
            "DeadLayer(share=0.0): expected a positive `share`; got 0.0. Its units stand in the docstring.",
        ),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(errors.InvalidInputError) as caught:
        make()
    assert str(caught.value).endswith(message)


def test_one_callback_needs_no_brackets():
    assert Findings(on_finding=print).callbacks == (print,)
    assert Findings().callbacks == ()


# Whom `watch` and `Monitor` tell


def line(params, x):
    return params["a"] * x


X = np.ones([8, 1], np.float32)
GRADIENTS = [1.0, 1.0, 1.0, 1e4]  # the last one is far above the median


def test_functions_alone_hear_of_a_monitor():
    told, also_told = [], []
    options = {"train": (X, None), "every": 1, "instruments": "layer_norms"}
    with Monitor(line, on_finding=[told.append, also_told.append], **options) as monitor:
        for step, size in enumerate(GRADIENTS):
            gradient = {"a": jnp.full([], size)}
            monitor(step, {"a": jnp.ones([])}, updates=gradient, gradient=gradient)
    assert [(finding.id, finding.step) for finding in told] == [
        ("not-finite-near", 3),
    ]
    assert told == also_told


@pytest.mark.parametrize(
    "of_data", [{"f": line, "train": (X, None), "instruments": "layer_norms"}, {}]
)
def test_a_function_alone_hears_of_a_watch(of_data):
    told = []
    tx = watch(optax.sgd(0.1), every=1, on_finding=told.append, **of_data)
    params = {"a": jnp.ones([])}
    state = tx.init(params)
    for size in GRADIENTS:
        _, state = jax.jit(tx.update)({"a": jnp.full([], size)}, state, params)
    jax.effects_barrier()
    assert [(finding.id, finding.step) for finding in told] == [
        ("not-finite-near", 3),
    ]


def test_functions_are_named_once():
    for findings in (Findings(), None):
        with pytest.raises(errors.InvalidInputError) as caught:
            findings_of(findings, print, [])
        assert str(caught.value) == (
            "findings=..., on_finding=...: expected one of both; got both. The functions go into the findings: "
            "findings=Findings(on_finding=[function])."
        )
    assert findings_of("auto", (), []) is None
    assert findings_of("auto", print, []).callbacks == (print,)


@pytest.mark.usefixtures("wrong_types")
def test_what_is_no_findings():
    with pytest.raises(errors.InvalidInputError) as caught:
        watch(optax.sgd(0.1), findings="standard")
    assert str(caught.value).endswith(
        "findings=...): expected an ntkdiag.monitor.Findings, \"auto\" or None; got 'standard'. "
        "on_finding=function tells a function what the standard rules find."
    )
    with pytest.raises(errors.InvalidInputError) as caught:
        watch(optax.sgd(0.1), on_finding=3)
    assert "on_finding=...): expected functions of one finding; got a int." in str(caught.value)
