"""The first measurement of a monitor is planned, and refused where it costs too much; the loop goes on."""

import functools

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import Status
from monitor_problem import f, problem

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import InMemory, Monitor

# What is refused for its price is the exact kernel.
kernel_monitor = functools.partial(Monitor, instruments="kernel")


def larger():
    """A problem of 40 examples and 10 outputs: a full kernel of 400 rows."""
    rng = np.random.default_rng(0)
    params = {
        "a": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32),
        "b": jnp.asarray(rng.normal(size=(4, 10)), jnp.float32),
    }
    return params, rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 10


def test_a_plan_says_flops_bytes_and_seconds():
    params, x, y = larger()
    plan = kernel_monitor(f, train=(x, y), loss="cross_entropy").plan(params).kernel
    of_kernel = ntkdiag.plan(f, params, x, reduction="full")
    # Two sets of eigenvalues, 4/3 K^3 each, and six arrays [K K] of 8 bytes.
    assert plan.flops == of_kernel.flops + 2 * 4 * 400**3 // 3
    assert plan.bytes == of_kernel.peak_bytes + 6 * 8 * 400**2
    assert plan.seconds > of_kernel.seconds
    text = str(plan)
    assert text.startswith(f"a kernel of 400 rows: {plan.flops:.2g} flops, ")
    assert text.endswith(f" MB, about {plan.seconds:.2g} s and compiling")


def test_a_plan_of_what_is_reduced_or_has_a_constant_curvature():
    params, x, y = larger()
    squared = kernel_monitor(f, train=(x, y), loss="mse").plan(params).kernel
    of_entropy = kernel_monitor(f, train=(x, y), loss="cross_entropy")
    assert squared.flops < of_entropy.plan(params).kernel.flops
    of_mean = kernel_monitor(f, train=(x, y), reduction="mean", loss="cross_entropy")
    reduced = of_mean.plan(params).kernel
    assert (reduced.n_rows, reduced.decompositions) == (40, 1)


@pytest.mark.parametrize(("reduction", "n_rows"), [("auto", 80), ("full", 800)])
def test_the_kernel_of_held_out_examples_is_in_the_plan(reduction, n_rows):
    params, x, y = larger()
    held_out = (np.concatenate([x + 1.0, x - 1.0]), np.concatenate([y, y]))
    options = {"train": (x, y), "loss": "mse", "reduction": reduction}
    alone = kernel_monitor(f, **options).plan(params).kernel
    both = kernel_monitor(f, **options, held_out=held_out).plan(params).kernel
    # By itself a held-out kernel is the mean over outputs, unless a reduction is stated.
    named = "mean" if reduction == "auto" else reduction
    second = ntkdiag.plan(f, params, held_out[0], reduction=named)
    assert both.flops == alone.flops + second.flops
    assert both.seconds == pytest.approx(alone.seconds + second.seconds)
    peak = max(alone.kernel.peak_bytes, second.peak_bytes)
    assert both.bytes == peak + 6 * 8 * (400**2 + n_rows**2)
    assert str(both).startswith(f"a kernel of 400 rows and one of {n_rows} held out: ")


def test_a_functional_knows_its_parameters():
    params, x, y = larger()
    fn = ntkdiag.functionalize(f, params)
    monitor = kernel_monitor(fn, train=(x, y))
    assert monitor.plan().kernel.flops == monitor.plan(params).kernel.flops
    with pytest.raises(errors.InvalidInputError) as caught:
        Monitor(f, train=(x, y)).plan()
    assert str(caught.value).startswith("monitor.plan(params): expected the parameters")


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"first_measurement": 1e-9}, "more than the 1e-09 s of first_measurement=. "),
        ({"memory": "5MB"}, "more than the 5 MB of memory=. "),
    ],
    ids=["time", "memory"],
)
def test_what_costs_too_much_is_refused_once_with_what_costs_less(limit, reason):
    params, x, y = larger()
    memory = InMemory()
    monitor = kernel_monitor(f, train=(x, y), every=1, loss="mse", writers=memory, **limit)
    with pytest.warns(RuntimeWarning) as caught:
        assert [monitor(step, params) for step in range(3)] == [None] * 3
    (warning,) = caught
    text = str(warning.message)
    of_kernel = kernel_monitor(f, train=(x, y), loss="mse").plan(params).kernel
    assert text.startswith(
        f"Monitor: the first measurement is not made: {of_kernel}, {reason}"
        'What costs less: reduction="sum-of-logits" ('
    )
    assert "; without a margin); 10 of the 40 examples (" in text
    assert text.endswith(
        "first_measurement=None sets no limit of time, memory= one of memory. Nothing is measured; "
        "training goes on."
    )
    assert warning.filename == __file__  # it points at the loop
    assert memory.steps == []
    assert monitor.cost.skipped == 3
    assert monitor.cost.measurements == 0


@pytest.mark.slow
def test_what_is_named_as_cheaper_fits():
    params, x, y = larger()
    for options in ({"reduction": "sum-of-logits"}, {"train": (x[:10], y[:10])}):
        monitor = kernel_monitor(f, **{"train": (x, y), "memory": "5MB", **options})
        assert monitor(0, params).status == Status.MEASURED


def test_a_budget_in_which_no_example_fits_is_refused_in_the_words_of_the_plan():
    params, x, y = larger()
    monitor = kernel_monitor(f, train=(x, y), every=1, memory=10)
    with pytest.warns(RuntimeWarning) as caught:
        assert [monitor(step, params) for step in range(3)] == [None] * 3
    (warning,) = caught
    assert "is not made: monitor(step, params): expected a budget of at least" in str(
        warning.message
    )
    assert "What costs less: a smaller probe. " in str(warning.message)


@pytest.mark.long
def test_no_limit():
    params, x, y = problem()
    monitor = kernel_monitor(f, train=(x, y), first_measurement=None)
    assert monitor(0, params).status == Status.MEASURED


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "60"])
def test_message_of_the_limit(seconds):
    _, x, y = problem()
    with pytest.raises(errors.InvalidInputError) as caught:
        Monitor(f, train=(x, y), first_measurement=seconds)
    assert str(caught.value) == (
        f"Monitor(f): expected a positive number of seconds; got first_measurement={seconds!r}. "
        "None sets no limit."
    )


def test_a_plan_is_of_all_instruments_and_the_same_before_there_is_a_monitor():
    params, x, y = larger()
    options = {"train": (x, y), "loss": "mse", "every": 50, "batch_size": 400}
    options["memory"] = "1GB"  # by default half of what is free, which changes from call to call
    for instruments in ("auto", ("economy", "spectral"), "kernel"):
        monitor = Monitor(f, **options, optimizer=optax.sgd(0.1), instruments=instruments)
        found = monitor.plan(params)
        assert found == ntkdiag.monitor.plan(f, params, **options, instruments=instruments)
        assert (found.kernel is None) == (instruments != "kernel")
        assert found.to_dict()["batch_size"] == 400
    assert str(found.kernel) in str(found)


def test_a_plan_leaves_out_what_the_monitor_cannot_know():
    params, x, y = larger()
    names = {cost.name for cost in Monitor(f, train=(x, y), loss="mse").plan(params).instruments}
    assert "top_curvatures" not in names
    assert "step_error" in names
