"""What a hook costs: `python -m benchmarks.hook_cost`.

AdamW and three steps of each network, in turns in one process:

    plain       without a hook
    unmeasured  with one whose schedule is never due
    measured    with one whose schedule is always due

The hook is `ntkdiag.watch` in a donated step, or one of these variants:

    writer        `RunLog` gets the rows
    without data  `watch(optimizer)` alone: norms and the learning rate
    not donated   the step keeps its arguments
    scan          ten steps in one `jax.lax.scan`
    Monitor       `Monitor.around` the plain step

Columns: an unmeasured and a measured step in units of the plain one, in CPU time of all threads,
medians over interleaved blocks; temporary memory of the compiled step, and CPU seconds of compiling
it, without and with the hook; arrays that the hook adds to the state.
"""

import argparse
import dataclasses
import statistics
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
from jaxtyping import Array, Float, Int, PyTree
from rich.console import Console
from rich.table import Table

import ntkdiag

VARIANTS = ("watch", "writer", "without data", "not donated", "scan", "Monitor")
SCANNED = 10  # steps of a scan
ROUNDS = 9  # blocks of each training
BLOCK_SECONDS = 0.5  # CPU seconds of a block, about


class Perceptron(nn.Module):
    """784-1024-1024-10: 1.9 million parameters, few operations for each."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for width in (1024, 1024):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


class Small(nn.Module):
    """64-64-10: a step of less than a millisecond."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x)))


class Convolutions(nn.Module):
    """Two convolutions with pooling, of 16 and 32 channels."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for width in (16, 32):
            x = nn.avg_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class ResidualNetwork(nn.Module):
    """Two residual blocks of 16 and 32 channels, with batch normalization."""

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        for width in (16, 32):
            x = nn.relu(nn.Conv(width, (3, 3), (2, 2))(x))
            h = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(width, (3, 3))(x)))
            x = x + nn.BatchNorm(use_running_average=not train)(nn.Conv(width, (3, 3))(h))
        return nn.Dense(10)(x.mean(axis=(1, 2)))


class TransformerBlock(nn.Module):
    """Causal attention and a perceptron, with a layer norm in front of each."""

    heads: int

    @nn.compact
    def __call__(self, x: Float[Array, "n t d"]) -> Float[Array, "n t d"]:
        n, t, d = x.shape
        q, k, v = jnp.split(nn.Dense(3 * d)(nn.LayerNorm()(x)), 3, axis=-1)
        # [n t d] -> [n t heads d/heads]
        q, k, v = (a.reshape(n, t, self.heads, -1) for a in (q, k, v))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + nn.Dense(d)(mixed.reshape(n, t, d))
        return x + nn.Dense(d)(nn.gelu(nn.Dense(4 * d)(nn.LayerNorm()(x))))


class LanguageModel(nn.Module):
    """Decoder with learned positions; the embedding is the head, too."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257

    @nn.compact
    def __call__(self, tokens: Int[Array, "n t"]) -> Float[Array, "n t vocabulary"]:
        embedding = nn.Embed(self.vocabulary, self.width)
        positions = nn.Embed(tokens.shape[1], self.width)
        x = embedding(tokens) + positions(jnp.arange(tokens.shape[1]))
        for _ in range(self.layers):
            x = TransformerBlock(self.heads)(x)
        return embedding.attend(nn.LayerNorm()(x))


@dataclasses.dataclass(frozen=True)
class Network:
    """A network with its batch.

    Attributes:
        name: For the table.
        module: A linen module.
        shape: Of a batch of images; of tokens where `is_language`.
        n_probe: Examples of the probe, the first of the batch.
        is_language: Whether inputs are tokens.
    """

    name: str
    module: nn.Module
    shape: tuple[int, ...]
    n_probe: int = 8
    is_language: bool = False

    def batch(self) -> tuple[Array, Array]:
        """Random examples with their labels."""
        rng = np.random.default_rng(0)
        if self.is_language:
            tokens = rng.integers(0, 64, (self.shape[0], self.shape[1] + 1))
            return jnp.asarray(tokens[:, :-1]), jnp.asarray(tokens[:, 1:])
        x = rng.normal(size=self.shape).astype(np.float32)
        return jnp.asarray(x), jnp.asarray(rng.integers(0, 10, self.shape[0]))

    def probe(self) -> dict[str, Any]:
        """What the hook measures."""
        x, y = self.batch()
        return {"train": (x[: self.n_probe], y[: self.n_probe]), "loss": "cross_entropy"}

    def variables(self) -> dict[str, PyTree]:
        """Initial parameters, and running statistics."""
        return self.module.init(jax.random.key(0), self.batch()[0][:2])

    def step(self, optimizer: optax.GradientTransformation) -> Callable[[PyTree, PyTree], PyTree]:
        """A training step: (parameters, statistics, optimizer state), batch -> the same."""

        def step(carry: PyTree, batch: PyTree) -> PyTree:
            params, fixed, state = carry
            x, y = batch
            options = {"train": True} if fixed else {}

            def loss_of(params: PyTree) -> tuple[Array, PyTree]:
                variables = {"params": params, **fixed}
                outputs, changed = self.module.apply(variables, x, mutable=[*fixed], **options)
                losses = optax.softmax_cross_entropy_with_integer_labels(outputs, y)
                return losses.mean(), changed

            gradient, changed = jax.grad(loss_of, has_aux=True)(params)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), changed, state

        return step


NETWORKS = {
    "MLP": Network("MLP 784-1024-1024-10, batch 64", Perceptron(), (64, 784)),
    "CNN": Network("CNN 16-32, batch 128", Convolutions(), (128, 16, 16, 3), n_probe=16),
    "small": Network("MLP 64-64-10, batch 32", Small(), (32, 64)),
    "ResNet": Network("ResNet 16-32 with BatchNorm", ResidualNetwork(), (64, 16, 16, 3)),
    "GPT": Network(
        "GPT, 2 layers, batch 32 x 32", LanguageModel(2, 64, 4, 64), (32, 32), is_language=True
    ),
}


class Training:
    """A training, compiled, and where it is.

    Attributes:
        compile_seconds: CPU seconds of compiling the step.
        temporary_bytes: Memory of the step beside its arguments.
        n_arrays: Arrays in the state beside those of the optimizer.
    """

    def __init__(
        self, network: Network, optimizer: optax.GradientTransformation, variant: str
    ) -> None:
        self._batch = network.batch()
        fixed = jax.tree.map(jnp.copy, network.variables())
        params = fixed.pop("params")
        state = optimizer.init(params)
        self.carry = (params, fixed, state)
        is_watched = isinstance(state, ntkdiag.monitor.WatchState)
        self.n_arrays = len(jax.tree.leaves(state._replace(ntk_inner=()))) if is_watched else 0
        step = network.step(optimizer)

        def scanned(carry: PyTree, batch: PyTree) -> PyTree:
            return jax.lax.scan(lambda c, _: (step(c, batch), None), carry, length=SCANNED)[0]

        run = scanned if variant == "scan" else step
        compiled = jax.jit(run, donate_argnums=() if variant == "not donated" else 0)
        lowered = compiled.lower(self.carry, self._batch)
        begun = time.process_time()
        self.step: Callable[[PyTree, PyTree], PyTree] = lowered.compile()
        self.compile_seconds = time.process_time() - begun
        self.temporary_bytes = self.step.memory_analysis().temp_size_in_bytes

    def seconds(self, n_calls: int) -> float:
        """CPU time of so many calls of the step."""
        begun = time.process_time()
        for _ in range(n_calls):
            self.carry = self.step(self.carry, self._batch)
        jax.block_until_ready(self.carry[0])
        jax.effects_barrier()
        return time.process_time() - begun


def never(step: Any) -> Any:
    """A schedule that is never due, which the compiler does not know."""
    return step == 2**30


def always(step: Any) -> Any:
    """A schedule that is always due."""
    return step >= 0


def watched(network: Network, every: Callable[[Any], Any], variant: str, log: Any) -> Training:
    """A training whose optimizer is watched."""
    if variant == "without data":
        return Training(network, ntkdiag.watch(optax.adamw(1e-3), every=every), variant)
    writers = [log] if variant == "writer" else ()
    functional = ntkdiag.functionalize(network.module, network.variables())
    options = {"every": every, "writers": writers, **network.probe()}
    return Training(network, ntkdiag.watch(optax.adamw(1e-3), functional, **options), variant)


def monitored(network: Network, every: Callable[[Any], Any]) -> Training:
    """A training whose step is measured from outside; its first measurement is made."""
    adamw = optax.adamw(1e-3)
    training = Training(network, adamw, "Monitor")
    functional = ntkdiag.functionalize(network.module, network.variables())
    monitor = ntkdiag.Monitor(functional, optimizer=adamw, every=every, **network.probe())
    training.step = monitor.around(training.step)
    begun = time.process_time()
    training.carry = training.step(training.carry, network.batch())
    if every is always:
        training.compile_seconds += time.process_time() - begun
    return training


def ratio(training: Training, plain: Training, n_calls: int, rounds: int) -> float:
    """CPU time over that of the plain step: the median over interleaved blocks."""
    training.seconds(2)
    ratios = []
    for _ in range(rounds):
        before = plain.seconds(n_calls)
        with_hook = training.seconds(n_calls)
        ratios.append(2 * with_hook / (before + plain.seconds(n_calls)))
    return statistics.median(ratios)


def row(network: Network, variant: str, rounds: int, log: Any) -> list[str]:
    """One row of the table."""
    plain = Training(network, optax.adamw(1e-3), variant)
    if variant == "Monitor":
        unmeasured, measured = monitored(network, never), monitored(network, always)
        compile_seconds = measured.compile_seconds
    else:
        unmeasured, measured = (watched(network, every, variant, log) for every in (never, always))
        compile_seconds = unmeasured.compile_seconds
    plain.seconds(3)
    n_calls = max(3, int(BLOCK_SECONDS / (plain.seconds(5) / 5)))
    n_measured = max(2, n_calls // 10)
    megabytes = [training.temporary_bytes / 1e6 for training in (plain, unmeasured)]
    return [
        network.name,
        variant,
        f"{ratio(unmeasured, plain, n_calls, rounds):.3f}",
        f"{ratio(measured, plain, n_measured, rounds):.1f}",
        f"{megabytes[0]:.1f} -> {megabytes[1]:.1f}",
        f"{plain.compile_seconds:.1f} -> {compile_seconds:.1f}",
        str(unmeasured.n_arrays),
    ]


def table(names: list[str], variants: list[str], rounds: int) -> Table:
    """A row for each network and variant."""
    made = Table(title="AdamW; in units of the plain step", title_justify="left")
    for name in ("training", "hook"):
        made.add_column(name)
    for name in ("unmeasured", "measured", "memory, MB", "compile, CPU s", "arrays"):
        made.add_column(name, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            log = ntkdiag.monitor.RunLog(folder, name=name)
            for variant in variants:
                made.add_row(*row(NETWORKS[name], variant, rounds, log))
    return made


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hook_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--networks", default=",".join(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--variants", default=",".join(VARIANTS), help=", ".join(VARIANTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="blocks of each training")
    arguments = parser.parse_args(argv)
    jax.config.update("jax_enable_compilation_cache", False)  # compile everything anew
    # The numbers are not looked at, only their cost.
    warnings.filterwarnings("ignore", message="XLA on this CPU", category=RuntimeWarning)
    names, variants = arguments.networks.split(","), arguments.variants.split(",")
    Console(width=120).print(table(names, variants, arguments.rounds))


if __name__ == "__main__":
    main()
