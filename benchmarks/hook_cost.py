"""What `ntkdiag.watch` costs as people train: `python -m benchmarks.hook_cost`.

AdamW, donated buffers, usual batches, defaults, a writer.

Three trainings of one network run in turns in one process, some steps of each after the other:

    plain      the optimizer alone
    watched    `ntkdiag.watch` with its defaults
    written    the same, and `JsonLines`

A probe is one batch. Ratios are those of neighbours in time: medians over the turns in which
nothing was measured, and of all steps together, the first measurement included, compiling not.
"""

import argparse
import dataclasses
import pathlib
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

# Steps of each training in one turn.
TURN = 25


class Perceptron(nn.Module):
    """784-1024-1024-10: 1.9 million parameters, few operations for each."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for width in (1024, 1024):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


class Convolutions(nn.Module):
    """Two convolutions with pooling, of 16 and 32 channels."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for width in (16, 32):
            x = nn.avg_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class Bottleneck(nn.Module):
    """Three convolutions with a shortcut; the stride is that of the 3x3 convolution."""

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"], train: bool) -> Float[Array, "n h2 w2 c2"]:
        def normalized(x: Array) -> Array:
            return nn.BatchNorm(use_running_average=not train)(x)

        strides = (self.stride, self.stride)
        y = nn.relu(normalized(nn.Conv(self.width, (1, 1), use_bias=False)(x)))
        y = nn.relu(normalized(nn.Conv(self.width, (3, 3), strides, use_bias=False)(y)))
        y = normalized(nn.Conv(4 * self.width, (1, 1), use_bias=False)(y))
        if x.shape != y.shape:
            x = normalized(nn.Conv(4 * self.width, (1, 1), strides, use_bias=False)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Residual network of bottlenecks with batch normalisation.

    Attributes:
        blocks: Blocks of each stage; all stages but the first begin with stride 2.
        width: Channels of the first stage, doubled in each further one.
        classes: Number of classes.
    """

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000

    @nn.compact
    def __call__(self, x: Float[Array, "n h w 3"], train: bool) -> Float[Array, "n classes"]:
        x = nn.Conv(self.width, (7, 7), (2, 2), use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, n_blocks in enumerate(self.blocks):
            for block in range(n_blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Bottleneck(self.width * 2**stage, stride)(x, train)
        return nn.Dense(self.classes)(x.mean((1, 2)))


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
class Loop:
    """A network and its batch.

    Attributes:
        name: For the table.
        module: A linen module; it takes `train=` where it has batch normalisation.
        shape: Of a batch; tokens where it has two axes and no features.
        is_language: Whether inputs are tokens.
        has_batch_norm: Whether the module normalises by the batch.
    """

    name: str
    module: nn.Module
    shape: tuple[int, ...]
    is_language: bool = False
    has_batch_norm: bool = False

    def batch(self) -> tuple[Array, Array]:
        """Random examples with their labels."""
        rng = np.random.default_rng(0)
        if self.is_language:
            tokens = rng.integers(0, 96, (self.shape[0], self.shape[1] + 1))
            return jnp.asarray(tokens[:, :-1]), jnp.asarray(tokens[:, 1:])
        x = rng.normal(size=self.shape).astype(np.float32)
        return jnp.asarray(x), jnp.asarray(rng.integers(0, 10, self.shape[0]))


LOOPS = (
    Loop("MLP 784-1024-1024-10, batch 64", Perceptron(), (64, 784)),
    Loop("CNN 16-32, batch 128", Convolutions(), (128, 16, 16, 3)),
    Loop("GPT of 2 layers, batch 32", LanguageModel(2, 64, 4, 96), (32, 32), is_language=True),
    Loop(
        "ResNet, BatchNorm, batch 64",
        ResNet((1, 1, 1), width=16, classes=10),
        (64, 32, 32, 3),
        has_batch_norm=True,
    ),
)


class Training:
    """One training, compiled, and where it is.

    Attributes:
        compile_seconds: Processor seconds of compiling the step.
        temporary_bytes: Memory of the step beside its arguments.
    """

    def __init__(self, loop: Loop, watched: Callable[..., Any] | None, **options: Any) -> None:
        self._batch = loop.batch()
        switch = {"train": True} if loop.has_batch_norm else {}
        variables = loop.module.init(jax.random.key(0), self._batch[0], **switch)
        self._params = jax.tree.map(jnp.copy, variables["params"])
        self._others = {name: tree for name, tree in variables.items() if name != "params"}
        optimizer = optax.adamw(1e-3)
        if watched is not None:
            call_kwargs = {"train": False} if loop.has_batch_norm else {}
            fn = ntkdiag.functionalize(loop.module, variables, call_kwargs=call_kwargs)
            optimizer = watched(optimizer, fn, train=self._batch, loss="cross_entropy", **options)
        self.state = optimizer.init(self._params)

        def step(params: PyTree, others: PyTree, state: PyTree, batch: PyTree) -> PyTree:
            x, y = batch

            def loss_of(params: PyTree) -> tuple[Array, PyTree]:
                outputs, written = loop.module.apply(
                    {"params": params, **others}, x, **switch, mutable=list(others)
                )
                losses = optax.softmax_cross_entropy_with_integer_labels(outputs, y)
                return losses.mean(), written

            (_, written), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), written, state

        self._step = jax.jit(step, donate_argnums=(0, 2))
        lowered = self._step.lower(self._params, self._others, self.state, self._batch)
        begun = time.process_time()
        compiled = lowered.compile()
        self.compile_seconds = time.process_time() - begun
        self.temporary_bytes = compiled.memory_analysis().temp_size_in_bytes
        self.parameter_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self._params))

    def seconds(self, n_steps: int) -> float:
        """Wall-clock time of so many steps."""
        begun = time.perf_counter()
        for _ in range(n_steps):
            self._params, self._others, self.state = self._step(
                self._params, self._others, self.state, self._batch
            )
        jax.block_until_ready(self._params)
        return time.perf_counter() - begun

    @property
    def measurements(self) -> int:
        """Measurements made."""
        return int(getattr(self.state, "ntk_measurements", 0))


def row(loop: Loop, n_steps: int, folder: pathlib.Path) -> list[str]:
    """One network's row of the table."""
    lines = ntkdiag.monitor.JsonLines(folder / f"{len(loop.name)}.jsonl")
    trainings = {
        "plain": Training(loop, None),
        "watched": Training(loop, ntkdiag.watch),
        "written": Training(loop, ntkdiag.watch, writers=lines),
    }
    plain, watched, written = trainings.values()
    plain.seconds(1)  # what is compiled is loaded
    taken = {name: 0.0 for name in trainings}
    quiet: dict[str, list[float]] = {"watched": [], "written": []}
    steps_of_plain = []
    for turn in range(n_steps // TURN):
        order = list(trainings)[turn % 3 :] + list(trainings)[: turn % 3]
        before = {name: training.measurements for name, training in trainings.items()}
        seconds = {name: trainings[name].seconds(TURN) for name in order}
        steps_of_plain.append(seconds["plain"] / TURN)
        for name in taken:
            taken[name] += seconds[name]
        for name, ratios in quiet.items():
            if trainings[name].measurements == before[name]:
                ratios.append(seconds[name] / seconds["plain"])
    of_watched, of_written = (statistics.median(ratios) for ratios in quiet.values())
    more = watched.temporary_bytes - plain.temporary_bytes
    margin = optax.tree_utils.tree_get(written.state, "ntk_margin")
    return [
        loop.name,
        f"{1e3 * statistics.median(steps_of_plain):.1f} ms",
        f"{of_watched:.3f}",
        f"{of_written:.3f}",
        f"{taken['written'] / taken['plain']:.3f}",
        str(written.measurements),
        f"{float(margin):.3g}",
        f"{more / plain.parameter_bytes:.1f}",
        f"{plain.compile_seconds:.1f} -> {watched.compile_seconds:.1f} s",
    ]


def table(n_steps: int) -> Table:
    """A row for each network."""
    made = Table(
        title=f"AdamW, donated buffers, {n_steps} steps, defaults; ratios to the plain step",
        title_justify="left",
    )
    made.add_column("training")
    for name in (
        "plain step",
        "unmeasured",
        "with a writer",
        "whole run",
        "measured",
        "last margin",
        "memory [params]",
        "compile CPU",
    ):
        made.add_column(name, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        for loop in LOOPS:
            made.add_row(*row(loop, n_steps, pathlib.Path(folder)))
    return made


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hook_cost", description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="of each training")
    arguments = parser.parse_args(argv)
    jax.config.update("jax_enable_compilation_cache", False)  # compile everything anew
    # The numbers are not looked at, only their cost.
    warnings.filterwarnings("ignore", message="XLA on this CPU", category=RuntimeWarning)
    Console(width=130).print(table(arguments.steps))


if __name__ == "__main__":
    main()
