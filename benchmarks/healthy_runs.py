"""Whether healthy runs are quiet, and hot ones are not: `python -m benchmarks.healthy_runs`.

Four networks by AdamW at a rate that trains them, constant, with cosine decay, and with warm-up
before that; and at 10 and 37 times the constant rate. Healthy runs should end without a warning,
status 0 of `ntkdiag check`; hot ones should have a finding before the loss is twice its start.
"""

import argparse
import dataclasses
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from rich.console import Console
from rich.table import Table

import ntkdiag
from benchmarks.hook_cost import LanguageModel, ResidualNetwork

STEPS, BATCH, PROBE, EVERY = 160, 32, 48, 4
N_TRAIN, TOKENS, VOCABULARY = 512, 16, 32
SCHEDULES: dict[str, Callable[[float], optax.Schedule]] = {
    "constant": optax.constant_schedule,
    "cosine": lambda rate: optax.cosine_decay_schedule(rate, STEPS),
    "warm-up, cosine": lambda rate: optax.warmup_cosine_decay_schedule(0.0, rate, 20, STEPS),
}
HOT = (10.0, 37.0)


class Perceptron(nn.Module):
    """Two hidden layers of 64 units."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(10)(x)


@dataclasses.dataclass(frozen=True)
class Task:
    """A network, the rate that trains it, and whether it reads tokens."""

    module: nn.Module
    rate: float
    reads_tokens: bool = False

    def data(self) -> tuple[Any, Any]:
        """Ten classes of noisy images, or sequences of a noisy automaton with the next tokens."""
        rng = np.random.default_rng(0)
        if not self.reads_tokens:
            y = rng.integers(0, 10, N_TRAIN)
            x = rng.normal(size=(10, 8, 8, 1))[y] + rng.normal(size=(N_TRAIN, 8, 8, 1))
            return x.astype(np.float32) / 2, y.astype(np.int32)
        tokens = rng.integers(0, VOCABULARY, (N_TRAIN, TOKENS + 1))
        for t in range(TOKENS):
            follows = rng.random(N_TRAIN) < 0.8
            tokens[follows, t + 1] = (3 * tokens[follows, t] + 1) % VOCABULARY
        return tokens[:, :-1], tokens[:, 1:]


TASKS = {
    "MLP": Task(Perceptron(), 0.01),
    "ResNet": Task(ResidualNetwork(), 0.01),
    "LM, width 32": Task(LanguageModel(2, 32, 4, VOCABULARY), 3e-3, reads_tokens=True),
    "LM, width 64": Task(LanguageModel(2, 64, 4, VOCABULARY), 1e-3, reads_tokens=True),
}


def training(task: Task) -> Callable[[Any, str], tuple[Any, Any]]:
    """A function of rates by step and a folder: losses, and the run."""
    x, y = task.data()
    fixed = task.module.init(jax.random.key(0), x[:2])
    params = fixed.pop("params")
    options = {"train": True} if fixed else {}
    memory = ntkdiag.monitor.InMemory()
    tx = ntkdiag.watch(
        optax.inject_hyperparams(lambda learning_rate: optax.adamw(learning_rate, b2=0.95))(0.0),
        ntkdiag.functionalize(task.module, {"params": params, **fixed}),
        train=(x[:PROBE], y[:PROBE]),
        loss="cross_entropy",
        every=EVERY,
        batch_size=BATCH,
        n_train=N_TRAIN,
        writers=memory,
    )

    @jax.jit
    def step(carry: Any, rate: Any, chosen: Any) -> tuple[Any, Any]:
        params, fixed, state = carry
        state = optax.tree_utils.tree_set(state, learning_rate=rate)
        xs, ys = jnp.asarray(x)[chosen], jnp.asarray(y)[chosen]

        def loss_of(params: Any) -> tuple[Any, Any]:
            variables = {"params": params, **fixed}
            outputs, changed = task.module.apply(variables, xs, mutable=[*fixed], **options)
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs, ys)
            return losses.mean(), changed

        (loss, changed), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, state = tx.update(gradient, state, params)
        return (optax.apply_updates(params, updates), changed, state), loss

    def run(rates: Any, folder: str) -> tuple[Any, Any]:
        rng, n_before = np.random.default_rng(1), len(memory.steps)
        carry, losses = (params, fixed, tx.init(params)), []
        for rate in rates:
            carry, loss = step(carry, rate, rng.choice(N_TRAIN, BATCH, replace=False))
            losses.append(float(loss))
        jax.effects_barrier()
        time.sleep(0.5)  # until the thread of the writers is done
        log = ntkdiag.monitor.RunLog(folder)
        log.start(memory.record)
        for row in memory.rows[n_before:]:
            log.write(row["step"], {name: row[name] for name in row if name != "step"})
        log.close()
        return np.array(losses), ntkdiag.open_run(folder)

    return run


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.healthy_runs", description=__doc__)
    parser.add_argument("--networks", default=";".join(TASKS))
    names = parser.parse_args(argv).networks.split(";")
    warnings.filterwarnings("ignore", message="XLA on this CPU", category=RuntimeWarning)
    made = Table("network", "rate", "first loss", "last loss", "check", "findings", "in time")
    for name in names:
        task = TASKS[name]
        run = training(task)
        kinds = {kind: schedule(task.rate) for kind, schedule in SCHEDULES.items()}
        kinds |= {f"{f:g} times": optax.constant_schedule(f * task.rate) for f in HOT}
        for kind, schedule in kinds.items():
            with tempfile.TemporaryDirectory() as folder:
                losses, found = run([float(schedule(k)) for k in range(STEPS)], folder)
                check = [sys.executable, "-m", "ntkdiag", "check", folder]
                status = subprocess.run(check, capture_output=True, check=False).returncode
                found = [one for one in found.findings if one.id not in ("loss", "margin")]
            doubled = np.flatnonzero(~(losses <= 2 * losses[0]))
            first = min((one.step for one in found if one.step is not None), default=None)
            in_time = "" if not len(doubled) else str(first is not None and first <= doubled[0])
            ids = ", ".join(f"{one.severity} {one.id} ({one.step})" for one in found)
            made.add_row(
                name, kind, f"{losses[0]:.3g}", f"{losses[-1]:.3g}", str(status), ids, in_time
            )
    Console(width=120).print(made)


if __name__ == "__main__":
    main()
