"""What `writers=` takes: writers, loggers of other libraries, names."""

import pytest
from internals import read_writers

from ntkdiag import errors

NAN = float("nan")
RECORD = {
    "call": "watch",
    "layers": ["a/kernel", "a/bias"],
}
VALUES = {
    "trace": 2.5,
    "status": 1,
    "margin": NAN,
    "eigenvalues": [2.0, NAN, 0.5],
    "layer_trace": [2.0, 0.5],
}
FLAT = {
    "trace": 2.5,
    "status": 1,
    "eigenvalues/0": 2.0,
    "eigenvalues/2": 0.5,
    "layer_trace/a/kernel": 2.0,
    "layer_trace/a/bias": 0.5,
}
IN_TRACKER = {f"ntkdiag/{name}": value for name, value in FLAT.items()}


class ClockWriter:
    """The interface of clu's metric writers."""

    def __init__(self):
        self.calls = []

    def write_scalars(self, step, scalars):
        self.calls.append((step, dict(scalars)))


class TrackerRun:
    """The interface of the runs of many trackers."""

    def __init__(self):
        self.calls = []

    def log(self, data, step=None, commit=True):
        self.calls.append((step, dict(data)))


class Events:
    """The interface of the SummaryWriter of tensorboardX and PyTorch."""

    def __init__(self):
        self.calls = []

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.numbers = {**getattr(self, "numbers", {}), tag: scalar_value}
        self.step = global_step

    def flush(self):
        self.calls.append((self.step, self.numbers))


def test_loggers_are_taken_as_they_are():
    for make in (ClockWriter, TrackerRun, Events):
        logger = make()
        [writer] = read_writers(logger)
        writer.start(RECORD)
        writer.write(7, VALUES)
        assert logger.calls == [(7, IN_TRACKER)]


@pytest.mark.usefixtures("wrong_types")
def test_not_a_writer():
    with pytest.raises(
        errors.InvalidInputError, match=r"a method write\(step, values\).*a NoneType"
    ):
        read_writers([None])
