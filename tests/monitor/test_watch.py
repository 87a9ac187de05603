"""`watch`: the updates are untouched, the numbers are those of the naive kernel, at the right steps."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from monitor_problem import QUANTITIES, C, N, agree, f, loss, naive, problem, train

import ntkdiag
from ntkdiag.descent import Descent
from ntkdiag.monitor import watch
from ntkdiag.monitor.measurement import Status
from ntkdiag.monitor.schedule import At, LogSpaced
from ntkdiag.monitor.watch import WatchState
from ntkdiag.monitor.writers import InMemory, JsonLines, read_json_lines

get = optax.tree_utils.tree_get
small = functools.partial(watch, top_k=3)

TRAINED_ON = (
    "The alignment is of examples that are trained on, whose labels a kernel comes to know; pass held_out=(x, y) for "
    "others."
)


@pytest.fixture
def x64():
    """Float64 on every thread: a compiled step calls back on threads where the context manager is not in force."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def test_updates_are_the_same_objects():
    params, x, y = problem()
    tx = small(f, train=(x, y), every=2)
    state = tx.init(params)
    for _ in range(3):
        updates = jax.tree.map(jnp.ones_like, params)
        out, state = tx.update(updates, state, params)
        assert out is updates
    assert isinstance(state, WatchState)


@pytest.mark.parametrize(
    ("optimizer", "first"),
    [(lambda: optax.sgd(0.1), True), (lambda: optax.adam(0.01), False)],
    ids=["before-sgd", "after-adam"],
)
def test_training_is_bitwise_the_same(optimizer, first):
    params, x, y = problem()
    params = jax.tree.map(lambda a: a.astype(jnp.float32), params)
    watcher = small(f, train=(x, y), every=2)
    chain = optax.chain(watcher, optimizer()) if first else optax.chain(optimizer(), watcher)
    plain, _ = train(optimizer(), params, 6)
    watched, _ = train(chain, params, 6)
    jax.tree.map(np.testing.assert_array_equal, plain, watched)


@pytest.mark.usefixtures("x64")
def test_values_at_the_scheduled_steps_match_the_naive_kernel(tmp_path):
    params, x, y = problem()
    memory, path = InMemory(), tmp_path / "run.jsonl"
    tx = optax.chain(
        optax.sgd(0.1),
        small(f, train=(x, y), every=3, loss="mse", descent=0.1, writers=[memory, JsonLines(path)]),
    )
    trajectory, state = train(tx, params, 8)
    assert memory.steps == [0, 3, 6]
    for row in memory.rows:
        agree(row, naive(trajectory[row["step"]], params, x=x, y=y, learning_rate=0.1))
        assert row["ntk_status"] == Status.MEASURED
    assert memory.rows[0]["ntk_drift"] == 0.0
    assert memory.rows[2]["ntk_drift"] > 0.01
    assert read_json_lines(path) == ([memory.record], memory.rows)
    # The state holds the last measurement.
    assert int(get(state, "ntk_step")) == 6
    assert int(get(state, "ntk_count")) == 8
    np.testing.assert_array_equal(get(state, "ntk_eigenvalues"), memory.rows[-1]["ntk_eigenvalues"])
    for name in ("ntk_trace", "ntk_drift", "ntk_distance_centred", "ntk_alignment", "ntk_margin"):
        assert float(get(state, name)) == memory.rows[-1][name]


@pytest.mark.usefixtures("x64")
def test_not_under_jit_the_numbers_are_the_same():
    params, x, y = problem()
    memory = InMemory()
    tx = small(f, train=(x, y), every=LogSpaced(), loss="mse", descent=0.1, writers=memory)
    state = tx.init(params)
    for step in range(4):
        p = jax.tree.map(lambda a, s=step: a * (1 + s), params)
        _, state = tx.update(p, state, p)
    assert memory.steps == [0, 1, 2]
    for row in memory.rows:
        moved = jax.tree.map(lambda a, s=row["step"]: a * (1 + s), params)
        agree(row, naive(moved, params, x=x, y=y, learning_rate=0.1))


@pytest.mark.usefixtures("x64")
def test_inside_scan():
    params, x, y = problem()
    memory = InMemory()
    tx = optax.chain(
        optax.sgd(0.1), small(f, train=(x, y), every=At((1, 4)), loss="mse", writers=memory)
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
    agree(
        memory.rows[0], naive(at[1], at[1], x=x, y=y)
    )  # drift is measured from the first measurement
    agree(memory.rows[1], naive(at[4], at[1], x=x, y=y))
    assert np.isnan(traces[0])
    np.testing.assert_array_equal(traces[1:4], traces[1])
    np.testing.assert_array_equal(traces[4:], traces[4])


def test_own_schedule_for_traced_steps_only():
    params, x, y = problem()
    memory = InMemory()
    tx = small(f, train=(x, y), every=lambda step: step.astype(jnp.float32) == 1.0, writers=memory)
    state, update = tx.init(params), jax.jit(tx.update)
    for _ in range(3):
        _, state = update(params, state, params)
    jax.effects_barrier()
    assert memory.steps == [1]


def test_a_step_that_is_not_scheduled_runs_no_kernel():
    params, x, y = problem()
    runs = []

    def counted(params, x):
        jax.debug.callback(lambda: runs.append(1))
        return f(params, x)

    tx = small(counted, train=(x, y), every=5)
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


def test_state_has_a_fixed_structure():
    params, x, y = problem()
    tx = small(f, train=(x, y))
    state = tx.init(params)
    _, later = jax.jit(tx.update)(params, state, params)

    def shape(leaf):
        return leaf.shape, leaf.dtype

    assert jax.tree.map(shape, state) == jax.tree.map(shape, later)
    assert jax.tree.map(shape, jax.eval_shape(tx.init, params)) == jax.tree.map(shape, state)
    assert state.ntk_eigenvalues.shape == (3,)
    assert state.ntk_kernel0.shape == (N * C, N * C)
    assert np.isnan(state.ntk_trace)
    assert int(state.ntk_step) == int(state.ntk_reference_step) == -1
    assert int(state.ntk_status) == Status.UNMEASURED


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("options", "tau"),
    [
        ({"momentum": 0.9}, 3.8),
        ({"momentum": 0.9, "kind": "nesterov"}, 3.8 / 2.8),
        ({"kind": "nesterov"}, 2.0),
    ],
)
def test_margin_with_momentum(options, tau):
    params, x, y = problem()
    _, state = train(small(f, train=(x, y), loss="mse", descent=Descent(0.1, **options)), params, 1)
    expected = naive(params, params, x=x, learning_rate=0.1, tau=tau)
    np.testing.assert_allclose(get(state, "ntk_margin"), expected["margin"], rtol=1e-9)
    np.testing.assert_allclose(
        get(state, "ntk_critical_learning_rate"), expected["critical_learning_rate"], rtol=1e-9
    )


@pytest.mark.usefixtures("x64")
def test_margin_with_a_learning_rate_schedule():
    params, x, y = problem()
    memory = InMemory()
    rate = optax.linear_schedule(0.1, 0.5, 10)
    trajectory, _ = train(
        small(f, train=(x, y), every=5, loss="mse", descent=rate, writers=memory), params, 6
    )
    for row in memory.rows:
        agree(
            row,
            naive(
                trajectory[row["step"]], params, x=x, y=y, learning_rate=0.1 + 0.04 * row["step"]
            ),
            rtol=1e-6,
        )
    assert memory.record["learning_rate"] == "schedule"


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("loss", ["cross_entropy", "sigmoid_cross_entropy"])
def test_margin_of_cross_entropy(loss):
    params, x, y = problem()
    _, state = train(small(f, train=(x, y), loss=loss, descent=0.1), params, 1)
    sigma = np.zeros((N * C, N * C))
    for i, logits in enumerate(np.asarray(f(params, x))):
        block = slice(i * C, (i + 1) * C)
        if loss == "cross_entropy":
            p = np.exp(logits) / np.exp(logits).sum()
            sigma[block, block] = np.diag(p) - np.outer(p, p)
        else:
            p = 1 / (1 + np.exp(-logits))
            sigma[block, block] = np.diag(p * (1 - p))
    expected = naive(params, params, x=x, learning_rate=0.1, sigma=sigma)
    np.testing.assert_allclose(get(state, "ntk_margin"), expected["margin"], rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_reduced_kernel_has_no_margin_and_says_so():
    params, x, _ = problem()
    memory = InMemory()
    train(
        small(f, train=(x, None), reduction="mean", loss="mse", descent=0.1, writers=memory),
        params,
        1,
    )
    full = naive(params, params, x=x)
    np.testing.assert_allclose(memory.rows[0]["ntk_trace"], full["trace"] / C, rtol=1e-9)
    assert np.isnan(memory.rows[0]["ntk_margin"])
    assert np.isnan(memory.rows[0]["ntk_critical_learning_rate"])
    assert memory.record["reduction"] == "mean"
    assert memory.record["notes"] == [
        "The kernel is reduced over outputs (mean): its largest eigenvalue is not that of the full kernel, so the "
        "critical learning rate and the margin would be wrong and are NaN.",
        "Trace, eigenvalues, drift and alignment are those of the reduced kernel.",
        "No labels were given: the alignment is NaN.",
        "Eigenvalues below the noise floor of the kernel are NaN.",
    ]


@pytest.mark.usefixtures("x64")
def test_reduced_kernel_of_one_output_is_the_full_kernel():
    params, x, _ = problem()
    target = np.linspace(-1, 1, N)

    def one(params, x):
        return f(params, x)[:, :1]

    rows = []
    for reduction in ("full", "mean"):
        memory = InMemory()
        options = {"reduction": reduction, "loss": "mse", "descent": 0.1, "writers": memory}
        train(small(one, train=(x, target), **options), params, 1)
        agree(
            memory.rows[0],
            naive(params, params, x=x, y=target[:, None], learning_rate=0.1, model=one),
        )
        rows.append(memory.rows[0])
    assert rows[0].keys() == rows[1].keys()


def test_large_probes_use_the_reduced_kernel():
    params, _, _ = problem()
    x = np.ones((1025, 3), np.float32)
    state = jax.eval_shape(watch(f, train=(x, None)).init, params)
    assert state.ntk_kernel0.shape == (1025, 1025)
    assert jax.eval_shape(watch(f, train=(x[:1024], None)).init, params).ntk_kernel0.shape == (
        2048,
        2048,
    )
    assert jax.eval_shape(
        watch(f, train=(x[:4], None), reduction="sum-of-logits", top_k=2).init, params
    ).ntk_kernel0.shape == (4, 4)


def test_record():
    params, x, y = problem()
    memory = InMemory()
    train(
        small(
            f,
            train=(x, y),
            every=4,
            loss="mse",
            descent=Descent(0.1, momentum=0.5),
            writers=memory,
            name="probe",
        ),
        params,
        1,
    )
    assert set(memory.rows[0]) == {"step", "probe_status"} | {
        f"probe_{quantity}" for quantity in QUANTITIES
    }
    digest = memory.record.pop("probe")
    assert digest == ntkdiag.ntk(f, params, x).convention.probe
    assert memory.record == {
        "source": "watch",
        "name": "probe",
        "schedule": "Every(k=4)",
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
        "weight_decay": 0.0,
        "labels": True,
        "learning_rate": 0.1,
        "momentum": 0.5,
        "kind": "heavy-ball",
        "notes": [
            "Stability numbers use 5 probe examples; with few examples the largest eigenvalue per example is estimated "
            "too high, which errs on the safe side.",
            "They hold for SGD with the recorded momentum, not for Adam.",
            TRAINED_ON,
            "Eigenvalues below the noise floor of the kernel are NaN.",
        ],
        "versions": {"ntkdiag": ntkdiag.__version__, "jax": jax.__version__},
    }
    other = InMemory()
    train(small(f, train=(x + 1, y), writers=other), params, 1)
    assert other.record["probe"] != digest


def test_without_a_loss_there_are_no_stability_numbers_and_the_record_says_so():
    params, x, y = problem()
    memory = InMemory()
    train(small(f, train=(x, y), descent=0.1, writers=memory), params, 1)
    assert np.isnan(memory.rows[0]["ntk_critical_learning_rate"])
    assert np.isnan(memory.rows[0]["ntk_margin"])
    assert np.isfinite(memory.rows[0]["ntk_alignment"])
    assert memory.record["loss"] is memory.record["denominator"] is None
    assert memory.record["notes"] == [
        "No loss was named: no stability numbers; pass loss=...",
        TRAINED_ON,
        "Eigenvalues below the noise floor of the kernel are NaN.",
    ]


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
def test_eigenvalues_below_the_noise_floor_are_nan(compiled):
    memory = InMemory()
    x = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)  # a linear model of rank 2
    tx = watch(lambda p, x: x @ p, train=(x, x[:, :1]), top_k=4, writers=memory)
    params = jnp.ones((2, 1))
    (jax.jit(tx.update) if compiled else tx.update)(params, tx.init(params), params)
    jax.effects_barrier()
    found = np.array(memory.rows[0]["ntk_eigenvalues"])
    np.testing.assert_allclose(found[:2], np.linalg.eigvalsh(x.T @ x)[::-1], rtol=1e-5)
    assert np.isnan(found[2:]).all()


def test_the_probe_is_copied():
    params, x, y = problem()
    rows = []
    for change in (False, True):
        memory = InMemory()
        probe = x.copy()
        tx = small(f, train=(probe, y), loss="mse", descent=0.1, writers=memory)
        if change:
            probe[:] = 0.0
        train(tx, params, 1)
        rows.append(memory.rows[0])
    assert rows[0] == rows[1]


def test_nan_parameters_are_reported_and_training_goes_on():
    params, x, y = problem()
    memory = InMemory()
    tx = small(f, train=(x, y), every=1, loss="mse", descent=0.1, writers=memory)
    update, state = jax.jit(tx.update), tx.init(params)
    bad = {**params, "a": params["a"].at[0, 0].set(jnp.nan)}
    for p in (bad, params, bad, params):
        out, state = update(p, state, p)
        jax.tree.map(np.testing.assert_array_equal, out, p)
    jax.effects_barrier()
    assert memory.series("ntk_status") == [2, 1, 2, 1]
    for row in memory.rows[::2]:
        assert all(
            np.isnan(value).all()
            for name, value in row.items()
            if name not in ("step", "ntk_status")
        )
    # The first kernel that could be measured is the reference.
    assert memory.series("ntk_drift")[1::2] == [0.0, 0.0]
    assert int(state.ntk_reference_step) == 1
    assert int(state.ntk_step) == 3


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
def test_failing_writer_does_not_stop_training(compiled):
    class Failing:
        def write(self, step, values):
            raise OSError("disk full")

    params, x, y = problem()
    memory = InMemory()
    tx = small(f, train=(x, y), every=1, writers=[Failing(), memory])
    update, state = jax.jit(tx.update) if compiled else tx.update, tx.init(params)

    def run(state):
        for _ in range(3):
            _, state = update(params, state, params)
        jax.effects_barrier()

    with pytest.warns(RuntimeWarning, match="the writer Failing failed in write") as caught:
        run(state)
    assert len(caught) == 1
    assert memory.steps == [0, 1, 2]


def test_under_vmap_writers_get_the_scheduled_steps_of_every_member():
    params, x, y = problem()
    memory = InMemory()
    tx = small(f, train=(x, y), every=2, writers=memory)
    ensemble = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), params)
    state, update = jax.vmap(tx.init)(ensemble), jax.jit(jax.vmap(tx.update))
    for _ in range(3):
        _, state = update(ensemble, state, ensemble)
    jax.effects_barrier()
    assert sorted(memory.steps) == [0, 0, 2, 2]
    expected = [
        naive(jax.tree.map(lambda a, s=s: s * a, params), params, x=x)["trace"] for s in (1, 2)
    ]
    np.testing.assert_allclose(sorted(memory.series("ntk_trace")[:2]), sorted(expected), rtol=1e-5)
    np.testing.assert_allclose(sorted(np.asarray(state.ntk_trace)), sorted(expected), rtol=1e-5)


def test_state_may_be_donated():
    params, x, y = problem()
    tx = optax.chain(optax.sgd(0.1, momentum=0.9), small(f, train=(x, y), every=2))
    plain, donating = jax.jit(tx.update), jax.jit(tx.update, donate_argnums=1)
    state, donated = tx.init(params), tx.init(params)
    for _ in range(3):
        _, state = plain(params, state, params)
        _, donated = donating(params, donated, params)
    np.testing.assert_array_equal(get(state, "ntk_eigenvalues"), get(donated, "ntk_eigenvalues"))


def test_differentiating_through_the_update():
    params, x, y = problem()
    tx = optax.chain(optax.sgd(0.1), small(f, train=(x, y)))

    def after(params):
        updates, _ = tx.update(jax.grad(loss)(params, x, y), tx.init(params), params)
        return loss(optax.apply_updates(params, updates), x, y)

    def plain(params):
        return loss(
            jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x, y)), x, y
        )

    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5),
        jax.grad(after)(params),
        jax.grad(plain)(params),
    )


@pytest.mark.parametrize(("normalised", "reduces"), [(False, False), (True, True)])
def test_asks_whether_the_compiler_can_be_trusted(normalised, reduces, monkeypatch):
    asked = []
    module = importlib.import_module(
        "ntkdiag.monitor.watch"
    )  # the package attribute is the function
    monkeypatch.setattr(module, "warn_if_untrusted_jit", lambda reduces: asked.append(reduces))
    params, x, y = problem()

    def model(params, x):
        if normalised:
            x = jax.jit(lambda x: x / jnp.sqrt(jnp.mean(x**2, axis=1, keepdims=True)))(x)
        return f(params, x)

    tx = small(model, train=(x, y))
    tx.update(params, tx.init(params), params)
    assert asked == []  # not compiled by the user: ntkdiag compiles it itself
    jax.jit(tx.update)(params, tx.init(params), params)
    assert asked == [reduces]


def test_inside_inject_hyperparams():
    params, x, y = problem()
    memory = InMemory()

    @optax.inject_hyperparams
    def optimizer(learning_rate):
        return optax.chain(
            optax.sgd(learning_rate),
            small(f, train=(x, y), every=1, loss="mse", descent=learning_rate, writers=memory),
        )

    train(optimizer(learning_rate=0.1), params, 3)
    assert memory.steps == [0, 1, 2]
    np.testing.assert_allclose(
        memory.series("ntk_margin"),
        0.1 / np.array(memory.series("ntk_critical_learning_rate")),
        rtol=1e-6,
    )


def test_without_writers_the_step_has_no_callback():
    params, x, y = problem()
    state = watch(f, train=(x, y)).init(params)
    for writers, expected in (((), False), ([InMemory()], True)):
        tx = watch(f, train=(x, y), writers=writers)
        assert (
            "debug_callback" in str(jax.make_jaxpr(tx.update)(params, state, params))
        ) == expected


def test_a_state_restored_with_another_probe_begins_anew():
    params, x, y = problem()
    one, other = (small(f, train=(examples, y), every=1) for examples in (x, 2 * x))
    _, state = one.update(params, one.init(params), params)
    moved = jax.tree.map(lambda p: 1.1 * p, params)
    _, same = one.update(params, state, moved)
    assert float(same.ntk_drift) > 0
    assert int(same.ntk_reference_step) == 0
    _, fresh = other.update(params, state, moved)
    assert float(fresh.ntk_drift) == 0
    assert int(fresh.ntk_reference_step) == 1
