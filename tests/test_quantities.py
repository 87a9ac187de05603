"""One name is one number: every number of a result stands in the table of `ntkdiag.quantities`."""

import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import QUANTITIES, quantity

import ntkdiag

ROOT = pathlib.Path(__file__).parents[1]
DESCENT = ntkdiag.Descent(learning_rate=0.1)
# Entries of rows and datasets that are no numbers of a kernel or of a step.
OTHERS = {"step", "label", "convention", "params_sha256", "spectrum_status"}
# Arrays that a dataset has beside the numbers; those of leaves say so.
ARRAYS = {"outputs", "outputs_linearized", "outputs_start", "label", "step"}


def f(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


@pytest.fixture(scope="module")
def probes():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(36, 4)).astype(np.float32), rng.integers(0, 3, 36)
    return {"train": (x[:24], y[:24]), "held_out": (x[24:], y[24:]), "loss": "cross_entropy"}


@pytest.fixture(scope="module")
def checkpoints(probes):
    """Parameters before and after three steps."""
    rng = np.random.default_rng(1)
    params = {
        "a": jnp.asarray(rng.normal(size=(4, 6)), jnp.float32),
        "b": jnp.asarray(rng.normal(size=(6, 3)), jnp.float32),
    }
    x, y = probes["train"]
    loss = lambda params: optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()
    later = params
    for _ in range(3):
        later = jax.tree.map(lambda p, g: p - 0.1 * g, later, jax.grad(loss)(later))
    return [params, later]


@pytest.fixture(scope="module")
def comparison(probes, checkpoints):
    fn = ntkdiag.functionalize(f, checkpoints[0])
    return ntkdiag.compare(*checkpoints, model=fn, descent=DESCENT, **probes)


@pytest.fixture(scope="module")
def track(probes, checkpoints):
    fn = ntkdiag.functionalize(f, checkpoints[0])
    sources = dict(enumerate(checkpoints))
    return ntkdiag.track(sources, model=fn, descent=DESCENT, gradient_kernel=True, **probes)


@pytest.fixture(scope="module")
def measurement(probes, checkpoints):
    """The numbers of a monitor."""
    tx = optax.sgd(0.1)
    monitor = ntkdiag.Monitor(f, optimizer=tx, every=1, **probes)
    measured = monitor(0, checkpoints[0], tx.init(checkpoints[0]))
    monitor.close()
    return measured.values()


def unknown(names):
    return {name for name in names if name not in OTHERS and quantity(name) is None}


@pytest.mark.slow
def test_every_number_is_in_the_table(comparison, track, measurement):
    assert not unknown([*comparison.sides[0].numbers, *comparison.numbers])
    assert not unknown([*track.names, *track.matrices])
    assert not unknown(measurement)
    findings = [*comparison.findings, *track.findings]
    assert not unknown(name for finding in findings for name in finding.quantities)


@pytest.mark.slow
def test_steps_of_an_optimizer_are_in_the_table(checkpoints):
    tx = ntkdiag.watch(optax.adam(1e-3), every=1)
    state = tx.init(checkpoints[0])
    gradient = jax.tree.map(jnp.ones_like, checkpoints[0])
    _, state = tx.update(gradient, state, checkpoints[0])
    assert not unknown(ntkdiag.record(state))


@pytest.mark.slow
def test_what_compare_and_track_share_is_one_number(comparison, track):
    for side, row in zip(comparison.sides, track.rows, strict=True):
        shared = (side.numbers.keys() & row.keys()) - {"step"}
        assert shared >= {"margin", "margin_upper", "held_out_alignment", "train_alignment"}
        for name in shared:
            np.testing.assert_allclose(side.numbers[name], row[name], rtol=1e-5, err_msg=name)
    between = comparison.numbers
    for name in between.keys() & track.rows[1].keys():
        np.testing.assert_allclose(between[name], track.rows[1][name], rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(between["e1"], track.matrix("e1")[0, 1], rtol=1e-4)


@pytest.mark.slow
def test_what_a_monitor_and_track_share_is_one_number(measurement, track):
    row, numbers = track.rows[0], measurement
    shared = numbers.keys() & row.keys()
    assert shared >= {"loss", "margin", "participation_ratio"}
    # The noise scale of a monitor is an estimate from random signs.
    for name in shared - {"noise_scale"}:
        if not name.endswith(("_lower", "_upper")):
            np.testing.assert_allclose(numbers[name], row[name], rtol=0.03, err_msg=name)


@pytest.mark.slow
def test_datasets_say_what_their_variables_are(comparison, track):
    for dataset in (comparison.dataset, track.dataset):
        assert dataset["margin"].attrs["long_name"] == "stability margin"
        assert dataset["loss"].attrs["units"] == "loss"
        without = {name for name in dataset.data_vars if "description" not in dataset[name].attrs}
        assert {name for name in without if not name.startswith("leaf_")} <= ARRAYS


def test_the_page_of_the_documentation_is_that_of_the_table():
    path = ROOT / "docs" / "quantities_page.py"
    spec = importlib.util.spec_from_file_location("quantities_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert pathlib.Path(module.PAGE).read_text() == module.page()
    for name in QUANTITIES:
        assert f"| `{name}` |" in module.page()
