"""The example's hooks in the real trainer of Levanter."""

import haliax as hax
import jax
import jax.numpy as jnp
import levanter_hook
import numpy as np
import optax
import pytest
from levanter.tracker import NoopTracker, TrackerConfig
from levanter_hook import Batch, In

import ntkdiag

X, Y = levanter_hook.data()
PROBE = (X[:8], Y[:8])


class Kept(NoopTracker):
    """Keeps what Levanter and ntkdiag log."""

    def __init__(self):
        self.rows = {}

    def log(self, metrics, *, step, commit=None):
        self.rows.setdefault(step, {}).update(metrics)


class Config(TrackerConfig):
    """Gives Levanter a tracker that is there already."""

    def __init__(self, tracker):
        self.tracker = tracker

    def init(self, run_id):
        return self.tracker


def trained(folder, add_hooks=None, optimizer=None):
    """Six updates: the losses, the parameters before each and at the end, and the tracker."""
    tracker = Kept()
    optimizer = optimizer or optax.adamw(1e-2)
    named = hax.named(X, (Batch, In)), hax.named(Y, (Batch,))
    losses, passed = [], []
    with levanter_hook.trainer_of(optimizer, folder, 6, Config(tracker)) as trainer:
        state = trainer.initial_state(jax.random.key(3), model=levanter_hook.network())
        closing = None if add_hooks is None else add_hooks(trainer, state)
        for _ in range(6):
            passed.append(jax.tree.map(np.asarray, state.trainable_model))
            info = trainer.train_step(state, *named)
            state = info.state
            losses.append(info.loss)
        passed.append(jax.tree.map(np.asarray, state.trainable_model))
        if closing is not None:
            closing.close()
    return losses, passed, tracker


def watching(folder, optimizer=None, **options):
    def add_hooks(trainer, state):
        return levanter_hook.watch_kernel(
            trainer,
            state,
            levanter_hook.functional(levanter_hook.network()),
            every=2,
            train=PROBE,
            loss="cross_entropy",
            optimizer=optimizer or optax.adamw(1e-2),
            out=folder / "run",
            **options,
        )

    return add_hooks


def jacobian_rows(params):
    """Rows [examples * classes, parameters], by JAX and Haliax alone."""
    x = hax.named(PROBE[0], (Batch.resize(8), In))
    jacobian = jax.jacrev(lambda params: params(x).array)(jax.tree.map(jnp.asarray, params))
    return np.concatenate([np.reshape(j, (24, -1)) for j in jax.tree.leaves(jacobian)], axis=1)


def test_training_is_the_same_and_the_numbers_are_those_of_the_step(tmp_path):
    with_hook, passed, tracker = trained(tmp_path, watching(tmp_path, instruments="kernel"))
    without, bare, _ = trained(tmp_path)
    assert with_hook == without
    for mine, theirs in zip(jax.tree.leaves(passed), jax.tree.leaves(bare), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    written = ntkdiag.open_run(tmp_path / "run").rows("watch")
    assert [row["step"] for row in written] == [0, 2, 4, 6]
    for row in written:
        rows = jacobian_rows(passed[row["step"]]).astype(np.float64)
        largest = np.linalg.eigvalsh(rows @ rows.T)[-1]
        np.testing.assert_allclose(row["eigenvalues"][0], largest, rtol=1e-2)
        logged = tracker.rows[row["step"]]
        [name] = [name for name in logged if name.endswith("trace")]
        assert logged[name] == row["trace"]


def test_the_margin_is_that_of_the_optimizer(tmp_path):
    optimizer = optax.sgd(0.3)
    add_hooks = watching(tmp_path, optimizer, instruments="margin")
    _, passed, _ = trained(tmp_path, add_hooks, optimizer)
    written = ntkdiag.open_run(tmp_path / "run").rows("watch")
    rows = jacobian_rows(passed[-1]).astype(np.float64).reshape(8, 3, -1)
    logits = passed[-1](hax.named(PROBE[0], (Batch.resize(8), In))).array
    p = np.asarray(jax.nn.softmax(logits), np.float64)
    of_loss = np.stack([np.diag(row) - np.outer(row, row) for row in p])
    curvature = np.einsum("nip,nij,njq->pq", rows, of_loss, rows) / 8
    expected = 0.3 * np.linalg.eigvalsh(curvature)[-1] / 2
    assert written[-1]["margin"] == pytest.approx(expected, rel=5e-2)


def test_inside_the_compiled_step(tmp_path):
    kept = Kept()

    def add_hooks(trainer, state):
        fn = levanter_hook.functional(levanter_hook.network())
        measured = ntkdiag.monitor.measure(
            fn, train=PROBE, loss="cross_entropy", optimizer=optax.adamw(1e-2)
        )
        trainer.add_hook(levanter_hook.KernelCallback(measured, kept), every=2)

    with_hook, passed, _ = trained(tmp_path, add_hooks)
    without, _, _ = trained(tmp_path)
    # The step is compiled with other things in it: equal up to roundoff
    np.testing.assert_allclose(with_hook, without, rtol=1e-5)
    # Measured in the second update, at the parameters before it, which Levanter calls step 1
    assert sorted(kept.rows) == [1, 3, 5]
    x = hax.named(PROBE[0], (Batch.resize(8), In))
    logits = jax.tree.map(jnp.asarray, passed[1])(x).array
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, PROBE[1]).mean()
    assert kept.rows[1]["ntkdiag/loss"] == pytest.approx(float(loss), rel=1e-5)
    assert kept.rows[1]["ntkdiag/step_error"] > 0
    assert kept.rows[1]["ntkdiag/margin"] > 0


def test_the_example_runs(tmp_path, capsys):
    levanter_hook.main(str(tmp_path / "run"), steps=4)
    assert "watch 2 steps, 0 to 4" in capsys.readouterr().out
