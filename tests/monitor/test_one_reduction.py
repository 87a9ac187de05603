"""A run is watched through one reduction, and its alignment is named with it wherever it prints."""

import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import Monitor
from ntkdiag.monitor import InMemory

X = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)


def f(params, x):
    return x @ params


def head(n_outputs):
    """Parameters of a linear model; its rows are N C, of which "auto" takes 2048 at most."""
    return jnp.asarray(np.random.default_rng(1).normal(size=(3, n_outputs)), jnp.float32)


@pytest.mark.slow
def test_a_monitor_does_not_change_its_kernel_when_outputs_are_added():
    """60 outputs are a full kernel to "auto", 70 are estimated."""
    before, after = 60, 70
    labels = np.arange(32) % 3
    memory = InMemory()
    options = {"every": 1, "instruments": "kernel", "time_share": None, "writers": memory}
    monitor = Monitor(f, train=(X, labels), **options)
    assert monitor(0, head(before)) is not None
    with pytest.warns(RuntimeWarning, match=r"Make a new Monitor for the new outputs\."):
        assert monitor(1, head(after)) is None
    assert monitor(2, head(before)) is not None
    monitor.close()
    assert memory.steps == [0, 2]


@pytest.mark.parametrize(
    ("n_outputs", "asked", "chosen", "said"),
    [
        (35, "auto", "mean", 'reduction="auto" chose "mean": the full kernel has 2,240 rows'),
        (70, "auto", "RandomProjections(k=8, seed=0)", 'reduction="mean" takes them.'),
        (70, "mean", "mean", None),
    ],
)
def test_the_record_says_what_was_chosen(n_outputs, asked, chosen, said):
    memory = InMemory()
    x = np.concatenate([X, X + 1])
    options = {"instruments": "kernel", "reduction": asked, "writers": memory}
    with Monitor(f, train=(x, None), **options) as monitor:
        monitor(0, head(n_outputs))
    assert (memory.record["reduction_asked"], memory.record["reduction"]) == (str(asked), chosen)
    notes = memory.record["notes"]
    if said is None:
        assert not any(note.startswith("reduction=") for note in notes)
    else:
        assert any(said in note for note in notes)
