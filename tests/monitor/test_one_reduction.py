"""A run is watched through one reduction, and its alignment is named with it wherever it prints."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from ntkdiag import Monitor, watch
from ntkdiag.demo.live import LiveView
from ntkdiag.monitor import InMemory
from ntkdiag.monitor.writers import Terminal

X = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)


def f(params, x):
    return x @ params


def head(n_outputs):
    """Parameters of a linear model; its rows are N C, of which "auto" takes 2048 at most."""
    return jnp.asarray(np.random.default_rng(1).normal(size=(3, n_outputs)), jnp.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(60, 70), (70, 80)])
def test_a_monitor_does_not_change_its_kernel_when_outputs_are_added(before, after):
    """60 outputs are a full kernel to "auto", 70 and 80 a mean: of one size, of other outputs."""
    labels = np.arange(32) % 3
    memory = InMemory()
    monitor = Monitor(f, train=(X, labels), every=1, time_share=None, writers=memory)
    assert monitor(0, head(before)) is not None
    first = "full" if before == 60 else "mean"
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


def test_a_state_of_another_reduction_begins_anew():
    """Kernels of "mean" and "trace" have one size: drift between them would be C - 1 = 3."""
    params = head(4)
    updates = jax.tree.map(jnp.zeros_like, params)
    of_mean = watch(f, train=(X, None), every=1, reduction="mean")
    _, state = of_mean.update(updates, of_mean.init(params), params)
    of_trace = watch(f, train=(X, None), every=1, reduction="trace")
    _, state = of_trace.update(updates, state, params)
    assert state.ntk_drift == 0.0
    assert state.ntk_reference_step == 1
    _, state = of_trace.update(updates, state, 2 * params)
    assert state.ntk_reference_step == 1  # and goes on from there


@pytest.mark.parametrize("reduction", ["full", "mean"])
def test_terminal_and_demo_name_the_reduction(reduction):
    with open("/dev/null", "w") as file:
        console = Console(width=60, record=True, file=file)
        labels = np.arange(32) % 3
        writers = [Terminal(console=console), LiveView(1, console)]
        monitor = Monitor(f, train=(X, labels), every=1, reduction=reduction, writers=writers)
        measured = monitor(0, head(4))
        monitor.close()
        text = console.export_text()
    assert f"ntk_alignment ({reduction}, trained on) {measured.alignment:.4g}" in text
    assert f"ntk_alignment_chance ({reduction}, trained on) {measured.alignment_chance:.4g}" in text
    assert f"  alignment ({reduction}, trained on) {measured.alignment:.4g}" in text
    assert f"  alignment_above ({reduction}, trained on) {measured.alignment_above:.4g}" in text


def test_two_monitors_of_one_terminal_have_names_of_their_own():
    with open("/dev/null", "w") as file:
        terminal = Terminal(console=Console(record=True, file=file))
        terminal.start({"name": "probe1", "reduction": "full"})
        terminal.start({"name": "probe2", "reduction": "full", "alignment_reduction": "mean"})
        terminal.write(0, {"probe1_alignment": 0.5, "probe2_alignment": 0.25, "probe2_trace": 1.0})
        text = terminal.console.export_text()
    assert text == (
        "step 0  probe1_alignment (full) 0.5  probe2_alignment (mean) 0.25  probe2_trace 1\n"
    )


def test_the_record_says_what_auto_chose():
    monitor_of = {"auto": "mean", "trace": "trace"}
    for asked, chosen in monitor_of.items():
        memory = InMemory()
        monitor = Monitor(f, train=(X, None), every=1, reduction=asked, writers=memory)
        monitor(0, head(70))
        monitor.close()
        assert (memory.record["reduction_asked"], memory.record["reduction"]) == (asked, chosen)
        said = 'reduction="auto" chose "mean": the full kernel has 2,240 rows, more than 2,048.'
        assert (said in memory.record["notes"]) == (asked == "auto")


def test_terminal_and_demo_name_the_examples_of_an_alignment():
    with open("/dev/null", "w") as file:
        console = Console(width=60, record=True, file=file)
        labels = np.arange(32) % 3
        writers = [Terminal(console=console), LiveView(1, console)]
        options = {"train": (X, None), "held_out": (X + 1, labels), "every": 1, "writers": writers}
        with Monitor(f, **options) as monitor:
            measured = monitor(0, head(4))
        text = console.export_text()
    assert f"ntk_alignment (mean, held out) {measured.alignment:.4g}" in text
    assert f"  alignment (mean, held out) {measured.alignment:.4g}" in text
