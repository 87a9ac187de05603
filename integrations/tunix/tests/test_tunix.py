"""The example's hook in the real trainer of Tunix."""

import jax
import numpy as np
import optax
import tunix_hook
from flax import nnx
from tunix.sft.metrics_logger import MetricsLoggerOptions

import ntkdiag

TOKENS = jax.random.randint(jax.random.key(0), (16, 6), 0, 11)
PROBE = TOKENS[:4]


class Backend:
    """Keeps what the metrics logger of Tunix sends to a tracker."""

    def __init__(self):
        self.scalars = {}
        self.is_closed = False

    def log_scalar(self, event, value, **keywords):
        # JAX keeps the listeners of trainers that have ended.
        if "step" in keywords and not self.is_closed:
            self.scalars[event, keywords["step"]] = float(value)

    def close(self):
        self.is_closed = True


def functional(model):
    return ntkdiag.functionalize(
        model, trainable=nnx.LoRAParam, output=lambda logits: logits[:, :-1]
    )


class Keeping(tunix_hook.NtkHooks):
    """The hook, and the parameters at each of its calls."""

    def __init__(self, monitor):
        def call(step, model, optimizer):
            self.seen.append((step, functional(model).params))
            measured = monitor(step, model, optimizer)
            if measured is not None:
                self.measured[step] = measured

        call.close = monitor.close
        self.seen = []
        self.measured = {}
        super().__init__(call)


def trained(optimizer, batches, *, hooked, tmp_path, **config):
    """Train one network: the model, the hook, the tracker and the run directory."""
    model = tunix_hook.network_with_lora(TOKENS)
    backend = Backend()
    logging = MetricsLoggerOptions(
        log_dir=str(tmp_path / "log"), backend_kwargs={"custom_backend": [lambda: backend]}
    )
    hooks = None
    if hooked:
        whole = optimizer
        if "gradient_accumulation_steps" in config:
            whole = optax.MultiSteps(optimizer, config["gradient_accumulation_steps"])
        monitor = ntkdiag.Monitor(
            functional(model),
            train=(PROBE, PROBE[:, 1:]),
            loss="cross_entropy",
            optimizer=whole,
            every=2,
            out=tmp_path / "run",
            writers="jax_monitoring",
        )
        hooks = Keeping(monitor)
    tunix_hook.fine_tune(
        model, optimizer, batches, hooks, metrics_logging_options=logging, **config
    )
    return model, hooks, backend


def jacobian_rows(fn, params):
    """Rows [examples * positions * classes, parameters], by JAX alone."""
    jacobian = jax.jacrev(lambda p: fn(p, PROBE))(params)
    n = fn(params, PROBE).size
    return np.concatenate([np.reshape(j, (n, -1)) for j in jax.tree.leaves(jacobian)], axis=1)


def test_training_is_the_same_and_the_numbers_are_those_of_the_step(tmp_path):
    batches = [TOKENS] * 5
    model, hooks, backend = trained(optax.adamw(1e-2), batches, hooked=True, tmp_path=tmp_path)
    bare, _, _ = trained(optax.adamw(1e-2), batches, hooked=False, tmp_path=tmp_path)
    jax.tree.map(
        np.testing.assert_array_equal, nnx.state(model, nnx.Param), nnx.state(bare, nnx.Param)
    )
    assert [step for step, _ in hooks.seen] == [0, 1, 2, 3, 4, 5]
    fn = functional(model)
    written = ntkdiag.open_run(tmp_path / "run").rows("watch")
    assert [row["step"] for row in written] == [0, 2, 4]
    for row in written:
        step = row["step"]
        rows = jacobian_rows(fn, hooks.seen[step][1])
        largest = np.linalg.eigvalsh(rows.astype(np.float64) @ rows.T)[-1]
        np.testing.assert_allclose(row["eigenvalues"][0], largest, rtol=1e-2)
        assert backend.scalars["ntkdiag/trace", step] == row["trace"]
        # Beside the loss of Tunix, which counts the step after an update
        assert ("/train/loss", step + 1) in backend.scalars


def test_gradients_that_are_accumulated_are_one_step(tmp_path):
    _, hooks, _ = trained(
        optax.adamw(1e-2),
        [TOKENS[:8], TOKENS[8:]] * 3,
        hooked=True,
        tmp_path=tmp_path,
        gradient_accumulation_steps=2,
    )
    assert [step for step, _ in hooks.seen] == [0, 1, 2, 3]
    assert list(hooks.measured) == [0, 2]
    assert hooks.measured[2].margin > 0


def test_the_example_runs(tmp_path, capsys):
    tunix_hook.main(str(tmp_path / "run"), steps=6)
    assert "watch 2 steps, 0 to 5" in capsys.readouterr().out
