"""`watch`: the updates are untouched, the numbers are those of the naive kernel, at the right steps."""

import functools
import importlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import Status
from monitor_problem import QUANTITIES, C, H, N, agree, f, loss, naive, problem, train

import ntkdiag
from ntkdiag import JsonLines, errors
from ntkdiag.models import functionalize
from ntkdiag.monitor import (
    Estimate,
    ExactKernel,
    InMemory,
    Instrument,
    WatchState,
    log_spaced,
    read_json_lines,
    watch,
)

get = optax.tree_utils.tree_get

TRAINED_ON = (
    "The alignment is of examples that are trained on, whose labels a kernel comes to know; pass held_out=(x, y) for "
    "others."
)


def kernel_watch(optimizer=None, model=f, **options):
    """`watch` of the kernel tier, which measures what the naive kernel tells."""
    optimizer = optax.sgd(0.1) if optimizer is None else optimizer
    return watch(optimizer, model, instruments="kernel", **{"top_k": 3, **options})


@pytest.fixture
def x64():
    """Float64 on every thread: a compiled step calls back on threads where the context manager is not in force."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.smoke
@pytest.mark.usefixtures("x64")
def test_values_at_the_scheduled_steps_match_the_naive_kernel(tmp_path):
    params, x, y = problem()
    memory, path = InMemory(), tmp_path / "run.jsonl"
    tx = kernel_watch(train=(x, y), every=3, loss="mse", writers=[memory, JsonLines(path)])
    trajectory, state = train(tx, params, 8)
    assert memory.steps == [0, 3, 6]
    for row in memory.rows:
        expected = naive(trajectory[row["step"]], params, x=x, y=y)
        agree(row, expected)
        assert row["status"] == Status.MEASURED
    assert memory.rows[0]["drift"] == 0.0
    assert memory.rows[2]["drift"] > 0.01
    # As text NaN is NaN.
    assert str(read_json_lines(path)) == str(([memory.record], memory.rows))
    # The state holds the last measurement.
    assert int(get(state, "ntk_step")) == 6
    assert int(get(state, "ntk_count")) == 8
    assert int(get(state, "ntk_measurements")) == 3
    np.testing.assert_array_equal(get(state, "ntk_eigenvalues"), memory.rows[-1]["eigenvalues"])
    for name in ("trace", "drift", "distance_centred", "alignment"):
        assert float(get(state, f"ntk_{name}")) == memory.rows[-1][name]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_not_under_jit_the_numbers_are_the_same():
    params, x, y = problem()
    memory = InMemory()
    tx = kernel_watch(train=(x, y), every=log_spaced, loss="mse", writers=memory)
    state = tx.init(params)
    for step in range(4):
        p = jax.tree.map(lambda a, s=step: a * (1 + s), params)
        _, state = tx.update(p, state, p)
    assert memory.steps == [0, 1, 2]
    for row in memory.rows:
        moved = jax.tree.map(lambda a, s=row["step"]: a * (1 + s), params)
        agree(row, naive(moved, params, x=x, y=y))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_inside_scan():
    params, x, y = problem()
    memory = InMemory()
    tx = kernel_watch(
        train=(x, y), every=lambda step: (step == 1) | (step == 4), loss="mse", writers=memory
    )

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params, x, y), state, params)
        return (optax.apply_updates(params, updates), state), (params, get(state, "ntk_trace"))

    _, (trajectory, traces) = jax.jit(lambda c: jax.lax.scan(step, c, length=6))(
        (params, tx.init(params))
    )
    jax.effects_barrier()
    assert memory.steps == [1, 4]
    at = [jax.tree.map(lambda a, i=i: a[i], trajectory) for i in range(6)]
    # Drift is measured from the first measurement.
    agree(memory.rows[0], naive(at[1], at[1], x=x, y=y))
    agree(memory.rows[1], naive(at[4], at[1], x=x, y=y))
    assert np.isnan(traces[0])
    np.testing.assert_array_equal(traces[1:4], traces[1])
    np.testing.assert_array_equal(traces[4:], traces[4])


@pytest.mark.slow
def test_own_schedule_for_traced_steps_only():
    params, x, y = problem()
    memory = InMemory()
    tx = kernel_watch(
        train=(x, y), every=lambda step: step.astype(jnp.float32) == 1.0, writers=memory
    )
    state, update = tx.init(params), jax.jit(tx.update)
    for _ in range(3):
        _, state = update(params, state, params)
    jax.effects_barrier()
    assert memory.steps == [1]


@pytest.mark.slow
def test_a_step_that_is_not_scheduled_runs_no_measurement():
    params, x, y = problem()
    runs = []

    def counted(params, x):
        jax.debug.callback(lambda: runs.append(1))
        return f(params, x)

    tx = watch(optax.sgd(0.1), counted, train=(x, y), every=5, instruments="kernel", top_k=3)
    state, update = tx.init(params), jax.jit(tx.update)
    jax.effects_barrier()
    runs.clear()  # init has looked whether examples interact
    _, state = update(params, state, params)
    jax.effects_barrier()
    measured = len(runs)
    assert measured > 0
    for _ in range(4):
        _, state = update(params, state, params)
    jax.effects_barrier()
    assert len(runs) == measured
    update(params, state, params)
    jax.effects_barrier()
    assert len(runs) == 2 * measured


@pytest.mark.slow
def test_state_has_a_fixed_structure():
    params, x, y = problem()
    tx = kernel_watch(optax.adam(1e-2), train=(x, y))
    state = tx.init(params)
    _, later = jax.jit(tx.update)(params, state, params)

    def shape(leaf):
        return leaf.shape, leaf.dtype

    assert isinstance(state, WatchState)
    for other in (later, jax.eval_shape(tx.init, params)):
        assert jax.tree.structure(state) == jax.tree.structure(other)
        assert list(map(shape, jax.tree.leaves(state))) == list(map(shape, jax.tree.leaves(other)))
    assert get(state, "ntk_eigenvalues").shape == (3,)
    assert np.isnan(get(state, "ntk_trace"))
    assert int(state.ntk_step) == -1
    assert int(state.ntk_status) == Status.UNMEASURED
    assert jax.tree.structure(state.ntk_inner) == jax.tree.structure(optax.adam(1e-2).init(params))


@pytest.mark.long
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("loss_name", ["cross_entropy", "sigmoid_cross_entropy"])
def test_critical_learning_rate_of_cross_entropy(loss_name):
    params, x, y = problem()
    _, state = train(kernel_watch(train=(x, y), loss=loss_name), params, 1)
    sigma = np.zeros((N * C, N * C))
    for i, logits in enumerate(np.asarray(f(params, x))):
        block = slice(i * C, (i + 1) * C)
        if loss_name == "cross_entropy":
            p = np.exp(logits) / np.exp(logits).sum()
            sigma[block, block] = np.diag(p) - np.outer(p, p)
        else:
            p = 1 / (1 + np.exp(-logits))
            sigma[block, block] = np.diag(p * (1 - p))
    expected = naive(params, params, x=x, sigma=sigma)["critical_learning_rate"]
    np.testing.assert_allclose(get(state, "ntk_critical_learning_rate"), expected, rtol=1e-9)


@pytest.mark.long
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("optimizer", "rate", "threshold"),
    [
        (lambda: optax.sgd(0.1), 0.1, 2.0),
        pytest.param(lambda: optax.sgd(0.1, momentum=0.9), 0.1, 3.8, marks=pytest.mark.slow),
        pytest.param(
            lambda: optax.sgd(optax.linear_schedule(0.1, 0.5, 10), momentum=0.9),
            0.1 + 0.04 * 3,
            3.8,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["sgd", "momentum", "schedule"],
)
def test_margin_is_read_from_the_optimizer(optimizer, rate, threshold):
    params, x, y = problem()
    tx = watch(optimizer(), f, train=(x, y), loss="mse", every=3, instruments="spectral", top_k=3)
    trajectory, state = train(tx, params, 4)
    expected = naive(trajectory[3], params, x=x, learning_rate=rate, tau=threshold)["margin"]
    np.testing.assert_allclose(get(state, "ntk_margin"), expected, rtol=1e-3)
    assert int(get(state, "ntk_optimizer_status")) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_reduced_kernel_has_no_critical_rate_and_says_so():
    params, x, _ = problem()
    memory = InMemory()
    tx = kernel_watch(train=(x, None), reduction="mean", loss="mse", writers=memory)
    train(tx, params, 1)
    full = naive(params, params, x=x)
    np.testing.assert_allclose(memory.rows[0]["trace"], full["trace"] / C, rtol=1e-9)
    assert np.isnan(memory.rows[0]["margin"])
    assert np.isnan(memory.rows[0]["critical_learning_rate"])
    assert memory.record["reduction"] == "mean"
    assert {
        "The kernel is reduced over outputs (mean): its largest eigenvalue is not that of the full kernel, so the "
        "critical learning rate and the margin would be wrong and are NaN.",
        "Trace, eigenvalues, drift and alignment are those of the reduced kernel.",
        "No labels were given: the alignment is NaN.",
        "Eigenvalues below the noise floor of the kernel are NaN.",
    } <= set(memory.record["notes"])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_reduced_kernel_of_one_output_is_the_full_kernel():
    params, x, _ = problem()
    target = np.linspace(-1, 1, N)

    def one(params, x):
        return f(params, x)[:, :1]

    rows = []
    for reduction in ("full", "mean"):
        memory = InMemory()
        tx = kernel_watch(
            model=one, train=(x, target), reduction=reduction, loss="mse", writers=memory
        )
        train(tx, params, 1)
        agree(memory.rows[0], naive(params, params, x=x, y=target[:, None], model=one))
        rows.append(memory.rows[0])
    assert rows[0].keys() == rows[1].keys()


@pytest.mark.slow
def test_record():
    params, x, y = problem()
    memory = InMemory()
    tx = kernel_watch(train=(x, y), every=4, loss="mse", writers=memory)
    train(tx, params, 1)
    assert set(memory.rows[0]) == {"step", "status", *QUANTITIES}
    digest = memory.record.pop("probe")
    assert digest == ntkdiag.ntk(f, params, x).convention.probe
    expected = {
        "source": "watch",
        "schedule": "Every(k=4)",
        "instruments": ["kernel"],
        "layers": [],
        "reduction": "full",
        "reduction_asked": "auto",
        "n_examples": N,
        "n_outputs": C,
        "dtype": "float32",
        "kernel_of": "train",
        "stability_of": "train",
        "alignment_of": "train",
        "alignment_reduction": "full",
        "alignment_probe": digest,
        "alignment_examples": N,
        "library": "callable",
        "mode": "unspecified",
        "loss": "mse",
        "denominator": "examples",
        "labels": True,
        "optimizer": "read from its updates",
        "versions": {"ntkdiag": ntkdiag.__version__, "jax": jax.__version__},
    }
    assert {name: memory.record[name] for name in expected} == expected
    assert TRAINED_ON in memory.record["notes"]
    assert "Eigenvalues below the noise floor of the kernel are NaN." in memory.record["notes"]
    other = InMemory()
    train(kernel_watch(train=(x + 1, y), writers=other), params, 1)
    assert other.record["probe"] != digest


@pytest.mark.slow
def test_without_a_loss_there_are_no_stability_numbers_and_the_record_says_so():
    params, x, y = problem()
    memory = InMemory()
    train(kernel_watch(train=(x, y), writers=memory), params, 1)
    assert np.isnan(memory.rows[0]["critical_learning_rate"])
    assert np.isnan(memory.rows[0]["margin"])
    assert np.isfinite(memory.rows[0]["alignment"])
    assert memory.record["loss"] is memory.record["denominator"] is None
    assert "No loss was named: no stability numbers; pass loss=..." in memory.record["notes"]


@pytest.mark.long
@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
def test_eigenvalues_below_the_noise_floor_are_nan(compiled):
    memory = InMemory()
    x = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)  # a linear model of rank 2
    tx = kernel_watch(model=lambda p, x: x @ p, train=(x, x[:, :1]), top_k=4, writers=memory)
    params = jnp.ones((2, 1))
    (jax.jit(tx.update) if compiled else tx.update)(params, tx.init(params), params)
    jax.effects_barrier()
    found = np.array(memory.rows[0]["eigenvalues"])
    np.testing.assert_allclose(found[:2], np.linalg.eigvalsh(x.T @ x)[::-1], rtol=1e-5)
    assert np.isnan(found[2:]).all()


@pytest.mark.slow
def test_the_probe_is_copied():
    params, x, y = problem()
    rows = []
    for change in (False, True):
        memory = InMemory()
        probe = x.copy()
        tx = kernel_watch(train=(probe, y), loss="mse", writers=memory)
        if change:
            probe[:] = 0.0
        train(tx, params, 1)
        rows.append(memory.rows[0])
    assert str(rows[0]) == str(rows[1])  # as text NaN is NaN


@pytest.mark.slow
def test_nan_parameters_are_reported_and_training_goes_on():
    params, x, y = problem()
    memory = InMemory()
    tx = kernel_watch(optax.identity(), train=(x, y), every=1, loss="mse", writers=memory)
    update, state = jax.jit(tx.update), tx.init(params)
    bad = {**params, "a": params["a"].at[0, 0].set(jnp.nan)}
    for p in (bad, params, bad, params):
        out, state = update(p, state, p)
        jax.tree.map(np.testing.assert_array_equal, out, p)
    jax.effects_barrier()
    assert memory.series("status") == [2, 1, 2, 1]
    for row in memory.rows[::2]:
        numbers = [value for name, value in row.items() if name not in ("step", "status")]
        assert all(np.isnan(value).all() for value in numbers)
    # The first kernel that could be measured is the reference.
    assert memory.series("drift")[1::2] == [0.0, 0.0]
    assert int(state.ntk_step) == 3


@pytest.mark.slow
def test_state_may_be_donated():
    params, x, y = problem()
    tx = kernel_watch(optax.sgd(0.1, momentum=0.9), train=(x, y), every=2)
    plain, donating = jax.jit(tx.update), jax.jit(tx.update, donate_argnums=1)
    state, donated = tx.init(params), tx.init(params)
    for _ in range(3):
        _, state = plain(params, state, params)
        _, donated = donating(params, donated, params)
    np.testing.assert_array_equal(get(state, "ntk_eigenvalues"), get(donated, "ntk_eigenvalues"))


@pytest.mark.slow
def test_differentiating_through_the_update():
    params, x, y = problem()
    tx = kernel_watch(train=(x, y))

    def after(params):
        updates, _ = tx.update(jax.grad(loss)(params, x, y), tx.init(params), params)
        return loss(optax.apply_updates(params, updates), x, y)

    def plain(params):
        return loss(
            jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x, y)), x, y
        )

    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, jax.grad(after)(params), jax.grad(plain)(params))
    jax.tree.map(close, jax.jit(jax.grad(after))(params), jax.grad(plain)(params))


@pytest.mark.slow
def test_asks_whether_the_compiler_can_be_trusted(monkeypatch):
    asked = []
    # The package attribute is the function.
    module = importlib.import_module("ntkdiag.monitor.watch")
    monkeypatch.setattr(module, "warn_if_untrusted_jit", lambda asks: asked.append(asks()))
    params, x, y = problem()
    tx = kernel_watch(train=(x, y))
    tx.update(params, tx.init(params), params)
    assert asked == []  # not compiled by the user: ntkdiag compiles it itself
    jax.jit(tx.update)(params, tx.init(params), params)
    assert asked == [False]


def with_root_mean_square(params, x):
    hidden = x @ params["a"]
    return hidden * jax.lax.rsqrt(jnp.mean(hidden**2, -1, keepdims=True)) @ params["b"]


def attention(params, x):
    """A softmax, a mean, and the root of a width: no normalisation."""
    hidden = (x @ params["a"]) / jnp.sqrt(H)
    return jax.nn.softmax(hidden * jnp.mean(hidden, axis=-1, keepdims=True)) @ params["b"]


@pytest.mark.parametrize(
    ("model", "dtype", "normalises"),
    [
        (f, np.float32, False),
        (attention, np.float32, False),
        (with_root_mean_square, np.float32, True),
        (with_root_mean_square, np.float64, False),
        (nn.Sequential([nn.Dense(H), nn.LayerNorm(), nn.relu, nn.Dense(C)]), np.float32, True),
        (nn.Sequential([nn.Dense(H), nn.relu, nn.Dense(C)]), np.float32, False),
        # Evaluated with running statistics, trained with those of the batch.
        (nn.Sequential([nn.Dense(H), nn.BatchNorm(True), nn.Dense(C)]), np.float32, True),
    ],
)
def test_only_networks_that_normalise_are_warned_of(model, dtype, normalises, monkeypatch):
    asked = []
    module = importlib.import_module("ntkdiag.monitor.watch")
    monkeypatch.setattr(module, "warn_if_untrusted_jit", lambda asks: asked.append(asks()))
    with jax.enable_x64(dtype == np.float64):
        params, x, y = problem()
        params, x = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (params, x))
        fn = model
        if isinstance(model, nn.Module):
            fn = functionalize(model, model.init(jax.random.key(0), x))
            params = fn.params
        tx = watch(optax.sgd(0.1), fn, train=(x, y), every=1, instruments="layer_norms")
        jax.eval_shape(tx.update, params, tx.init(params), params)
    assert asked == [normalises]


def test_without_writers_the_step_has_no_callback():
    params, x, y = problem()
    state = kernel_watch(train=(x, y)).init(params)
    for writers, expected in (((), False), ([InMemory()], True)):
        tx = kernel_watch(train=(x, y), writers=writers)
        program = str(jax.make_jaxpr(tx.update)(params, state, params))
        assert ("pure_callback" in program) == expected
        assert "debug_callback" not in program  # an effect: JAX would be slow to call the step


def test_in_a_loop_writers_are_called_whether_or_not_the_state_is_used():
    params, x, y = problem()
    memory = InMemory()
    tx = kernel_watch(train=(x, y), writers=memory, every=2)

    @jax.jit
    def run(params):
        def step(carry, _):
            params, state = carry
            updates, state = tx.update(params, state, params)
            return (optax.apply_updates(params, updates), state), None

        (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), length=4)
        return params

    jax.block_until_ready(run(params))
    jax.effects_barrier()
    assert memory.steps == [0, 2]


def test_the_work_has_a_name_in_profiles():
    params, x, y = problem()
    tx = watch(optax.sgd(0.1), f, train=(x, y), instruments="layer_norms")
    lowered = jax.jit(tx.update).lower(params, tx.init(params), params)
    assert "ntkdiag" in lowered.as_text(debug_info=True)


def test_a_state_restored_with_another_probe_begins_anew():
    params, x, y = problem()
    one, other = (kernel_watch(train=(examples, y), every=1) for examples in (x, 2 * x))
    _, state = one.update(params, one.init(params), params)
    moved = jax.tree.map(lambda p: 1.1 * p, params)
    _, same = one.update(params, state, moved)
    assert float(get(same, "ntk_drift")) > 0
    assert int(same.ntk_memory["kernel"].step) == 1  # the step of the reference, plus 1
    assert int(same.ntk_measurements) == 2
    _, fresh = other.update(params, state, moved)
    assert float(get(fresh, "ntk_drift")) == 0
    assert int(fresh.ntk_memory["kernel"].step) == 2
    assert int(fresh.ntk_measurements) == 1


class OutputNorm(Instrument):
    """An instrument as users write it."""

    name = "output_norm"

    def measure(self, context, memory):
        return {"output_norm": Estimate.of_mean((context.outputs**2).sum(axis=1))}, memory


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
def test_an_instrument_of_ones_own(compiled):
    params, x, y = problem()
    instruments = ("layer_norms", OutputNorm())
    tx = watch(optax.sgd(0.1), f, train=(x, y), instruments=instruments)
    update = jax.jit(tx.update) if compiled else tx.update
    _, state = update(params, tx.init(params), params)
    norms = (np.asarray(f(params, x)) ** 2).sum(axis=1)
    np.testing.assert_allclose(get(state, "ntk_output_norm"), norms.mean(), rtol=1e-5)
    lower = norms.mean() - 2.7764451 * norms.std(ddof=1) / np.sqrt(N)  # Student's t, 4 degrees
    np.testing.assert_allclose(get(state, "ntk_output_norm_lower"), lower, atol=1e-5)
    assert get(state, "ntk_layer_gradient").shape == (2,)


@pytest.mark.usefixtures("wrong_types")
def test_what_is_no_optimizer_is_refused():
    _, x, y = problem()
    with pytest.raises(errors.InvalidInputError) as caught:
        watch(f, f, train=(x, y))
    assert str(caught.value) == (
        "watch(optimizer, f): expected an optimizer of Optax; got a function. Wrap the whole optimizer: "
        'ntkdiag.watch(optax.adamw(1e-3), fn, train=(x, y), loss="cross_entropy").'
    )


def test_the_state_of_an_optimizer_without_watch_is_refused():
    params, x, y = problem()
    tx = kernel_watch(train=(x, y))
    with pytest.raises(errors.StructureError) as caught:
        tx.update(params, optax.sgd(0.1).init(params), params)
    assert str(caught.value) == (
        "watch(optimizer, f).update(updates, state, params): expected the state of a watched optimizer; got "
        "a tuple. Put it under watch: tx.init(params)._replace(ntk_inner=opt_state)."
    )


@pytest.mark.slow
def test_a_large_first_kernel_is_not_kept():
    params, _, _ = problem()
    x = np.ones((1024, 3), np.float32)
    state = jax.eval_shape(kernel_watch(train=(x, None)).init, params)
    assert "kernel" not in state.ntk_memory
    few = jax.eval_shape(kernel_watch(train=(x[:150], None)).init, params)
    assert few.ntk_memory["kernel"].kernel0.shape == (300, 300)

    memory = InMemory()
    options = {"instruments": ExactKernel(memory_limit=16_000), "writers": memory}
    tx = watch(optax.sgd(0.1), f, train=(x[:40], None), every=1, **options)
    _, state = jax.jit(tx.update)(params, tx.init(params), params)
    jax.effects_barrier()
    assert np.isnan(get(state, "ntk_drift"))
    assert np.isfinite(get(state, "ntk_trace"))
    assert any("80 rows is not kept" in note for note in memory.record["notes"])
