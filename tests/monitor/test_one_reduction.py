"""A run is watched through one reduction, and its alignment is named with it wherever it prints."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ntkdiag
from ntkdiag import Monitor, errors, watch
from ntkdiag.kernel import RandomProjections
from ntkdiag.monitor import InMemory

X = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)


def f(params, x):
    return x @ params


def head(n_outputs):
    """Parameters of a linear model; its rows are N C, of which "auto" takes 2048 at most."""
    return jnp.asarray(np.random.default_rng(1).normal(size=(3, n_outputs)), jnp.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "first"),
    [(60, 70, "full"), (70, 80, "RandomProjections(k=8, seed=0)")],
)
def test_a_monitor_does_not_change_its_kernel_when_outputs_are_added(before, after, first):
    """60 outputs are a full kernel to "auto", 70 and 80 estimated: of one size, of other outputs."""
    labels = np.arange(32) % 3
    memory = InMemory()
    options = {"every": 1, "instruments": "kernel", "time_share": None, "writers": memory}
    monitor = Monitor(f, train=(X, labels), **options)
    assert monitor(0, head(before)) is not None
    message = (
        f"expected outputs of shape (32, {before}), as at the first measurement, whose {first} "
        f"kernel all others are compared with; got shape (32, {after}). Make a new Monitor for the "
        "new outputs."
    )
    with pytest.warns(RuntimeWarning, match=re.escape(message)):
        assert monitor(1, head(after)) is None
    assert monitor(2, head(before)) is not None
    monitor.close()
    assert memory.steps == [0, 2]


@pytest.mark.slow
def test_a_state_of_another_reduction_begins_anew():
    """Kernels of "mean" and "trace" have one size: drift between them would be C - 1 = 3."""
    params = head(4)
    updates = jax.tree.map(jnp.zeros_like, params)
    options = {"train": (X, None), "every": 1, "instruments": "kernel"}
    of_mean = watch(optax.sgd(0.1), f, reduction="mean", **options)
    _, state = of_mean.update(updates, of_mean.init(params), params)
    of_trace = watch(optax.sgd(0.1), f, reduction="trace", **options)
    _, state = of_trace.update(updates, state, params)
    assert state.ntk_numbers["ntk_drift"] == 0.0
    assert state.ntk_memory["kernel"].step == 2  # one more than the step it is of
    _, state = of_trace.update(updates, state, 2 * params)
    assert state.ntk_memory["kernel"].step == 2  # and goes on from there


@pytest.mark.parametrize(
    ("n_outputs", "asked", "chosen", "said"),
    [
        (
            35,
            "auto",
            "mean",
            'reduction="auto" chose "mean": the full kernel has 2,240 rows, more than 2,048.',
        ),
        (
            70,
            "auto",
            "RandomProjections(k=8, seed=0)",
            'reduction="auto" chose RandomProjections(k=8, seed=0): the full kernel has 4,480 rows, more than 2,048, '
            "and the mean over outputs would take 70 backward passes of each example. "
            'reduction="mean" takes them.',
        ),
        (70, "mean", "mean", None),
        (
            70,
            RandomProjections(4, seed=1),
            "RandomProjections(k=4, seed=1)",
            "The kernel is an estimate of the trace over outputs, 70 times the mean, from 4 random directions of "
            "them, the same at every step: its trace has an interval, its other numbers an error that is not known.",
        ),
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
        assert said in notes


@pytest.mark.long
@pytest.mark.parametrize("with_held_out", [False, True])
def test_random_projections_estimate_the_trace_with_its_error(with_held_out):
    """On a network whose outputs share their parameters: the interval holds the exact trace."""

    def network(params, x):
        return jnp.tanh(x @ params["a"]) @ params["b"]

    rng = np.random.default_rng(2)
    params = {"a": rng.normal(size=(3, 6)), "b": rng.normal(size=(6, 80))}
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    exact = float(np.trace(ntkdiag.ntk(network, params, X, reduction="trace").array))
    labels = np.arange(32) % 3
    options = {"held_out": (X + 1, labels)} if with_held_out else {}
    n_hits = 0
    for seed in range(20):
        reduction = RandomProjections(8, seed=seed)
        monitor = Monitor(
            network, train=(X, labels), reduction=reduction, instruments="kernel", **options
        )
        measured = monitor(0, params)
        trace = measured["trace"]
        assert not trace.is_exact
        assert float(trace.value) != pytest.approx(exact, rel=1e-5)
        n_hits += float(trace.lower) <= exact <= float(trace.upper)
        assert np.isnan(measured.margin)
        assert np.isfinite(measured.alignment)
        assert measured.alignment_reduction == str(reduction)
    # Of 20 intervals of 95 % at most three miss in 98 of 100 draws.
    assert n_hits >= 17


def test_projections_that_do_not_exist_are_refused():
    fn = ntkdiag.functionalize(f, head(3))
    with pytest.raises(errors.InvalidInputError) as caught:
        Monitor(fn, train=(X, None), reduction=RandomProjections(5))
    assert str(caught.value) == (
        "Monitor(f): expected RandomProjections(k) with 2 <= k <= 2^2; got "
        "RandomProjections(k=5, seed=0). This function has 3 outputs per example."
    )
