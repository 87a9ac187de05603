"""Logs of other programs: JSON lines, CSV and TensorBoard, under our names."""

import csv
import json
import math

import pytest
from internals import is_foreign_log, read_foreign_log

ROWS = [
    {"step": 0, "train/loss": 2.0, "val/loss": 9.0, "grad_norm": 1.5, "lr": 0.1},
    {"step": 10, "train/loss": 1.0, "val/loss": 8.0, "grad_norm": 0.5, "lr": 0.2},
]
READ = [
    {"step": 0.0, "loss": 2.0, "gradient_norm": 1.5, "learning_rate": 0.1},
    {"step": 10.0, "loss": 1.0, "gradient_norm": 0.5, "learning_rate": 0.2},
]


def test_json_lines(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)) + '\n{"step": 20, "train/lo')
    assert is_foreign_log(path)
    assert read_foreign_log(path) == READ


def test_csv(tmp_path):
    path = tmp_path / "log.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ROWS[0])
        writer.writeheader()
        writer.writerows(ROWS)
    assert is_foreign_log(path)
    assert read_foreign_log(path) == READ


def test_tensorboard(tmp_path):
    board = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    record_writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    summary_pb2 = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
    writer = record_writer.EventFileWriter(str(tmp_path))
    for row in ROWS:
        values = [
            summary_pb2.Summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if name != "step"
        ]
        event = board.Event(step=row["step"], summary=summary_pb2.Summary(value=values))
        writer.add_event(event)
    writer.close()
    assert is_foreign_log(tmp_path)
    for row, expected in zip(read_foreign_log(tmp_path), READ, strict=True):
        assert row == pytest.approx(expected)


def test_numbers_of_one_step_stand_together(tmp_path):
    """As trackers write them, one line for each name; a loss that is null is NaN."""
    path = tmp_path / "log.jsonl"
    lines = [
        {"_step": 3, "loss": 1.0},
        {"_step": 3, "update_norm": 2.0},
        {"_step": 4, "loss": None},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    first, second = read_foreign_log(path)
    assert first == {"step": 3.0, "loss": 1.0, "update_norm": 2.0}
    assert math.isnan(second["loss"])


def test_what_a_monitor_wrote_is_there_as_it_is(tmp_path):
    path = tmp_path / "watch.jsonl"
    row = {"step": 5, "margin": 0.5, "batch_loss": 0.1, "status": 1}
    lines = [{"record": {"call": "watch"}}, row, {"finding": {"id": "margin-rises", "step": 5}}]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read_foreign_log(path) == [row]


def test_a_margin_is_ours_in_a_tracker_where_it_is_named_so(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [{"step": 1, "ntkdiag/margin": 0.5, "margin": 7.0, "ntkdiag/layer_update/a/bias": 3.0}]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read_foreign_log(path) == [{"step": 1, "margin": 0.5}]


def test_steps_that_are_missing_are_counted(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("Loss\n2.0\n1.0\n")
    assert read_foreign_log(path) == [{"step": 0.0, "loss": 2.0}, {"step": 1.0, "loss": 1.0}]


def test_run_directories_are_none(tmp_path):
    assert not is_foreign_log(tmp_path)
    assert not is_foreign_log(tmp_path / "missing.csv")
