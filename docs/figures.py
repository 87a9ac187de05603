"""The pictures at the top of the guides: `python docs/figures.py [guide ...]` draws them anew.

Each function draws one picture from numbers it computes, and is named after its guide; a picture
goes to `docs/images/guide_<name>.png`, or `.svg` where it shows a terminal.
All together take some minutes on two cores.
"""

import argparse
import dataclasses
import functools
import io
import pathlib
import re
import tempfile
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from matplotlib.figure import Figure
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text
from sklearn.datasets import load_digits

import ntkdiag
import ntkdiag.neural_tangents as nt
from ntkdiag import predict
from ntkdiag.report.comparison_table import Screen
from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, logarithmic

IMAGES = pathlib.Path(__file__).parent / "images"
WIDTH = 8.0  # inches, that of the text


def plots(columns: int, height: float = 2.6) -> tuple[Figure, np.ndarray]:
    """A row of axes."""
    figure = Figure((WIDTH, height), layout="constrained")
    return figure, np.atleast_1d(figure.subplots(1, columns))


@functools.cache
def digits(
    n_examples: int = 40, n_classes: int = 4
) -> tuple[np.ndarray, np.ndarray]:
    """Images `[n 64]` of handwritten digits, in the order of their classes, and the classes."""
    images, labels = load_digits(return_X_y=True)
    rows = []
    for digit in range(n_classes):
        rows.append(np.flatnonzero(labels == digit)[: n_examples // n_classes])
    chosen = np.concatenate(rows)
    return (images[chosen] / 16).astype(np.float32), labels[chosen]


def one_hidden_layer(
    key: jax.Array, n_inputs: int, width: int, n_outputs: int
) -> dict:
    """Parameters of `network`."""
    first, second = jax.random.split(key)
    return {
        "a": jax.random.normal(first, (n_inputs, width)) / n_inputs**0.5,
        "b": jax.random.normal(second, (width, n_outputs)) / width**0.5,
    }


def network(params: dict, x: jax.Array) -> jax.Array:
    """A network of one hidden layer."""
    return jnp.tanh(x @ params["a"]) @ params["b"]


def descend(loss, params: dict, learning_rate: float, steps: int) -> list[dict]:
    """Parameters before and after each step of gradient descent."""

    @jax.jit
    def step(params):
        gradient = jax.grad(loss)(params)
        return jax.tree.map(
            lambda p, g: p - learning_rate * g, params, gradient
        )

    path = [params]
    for _ in range(steps):
        path.append(step(path[-1]))
    return path


def trained_on_digits(x: np.ndarray, y: np.ndarray) -> tuple[dict, dict]:
    """Parameters of `network` before and after 200 steps."""
    params = one_hidden_layer(jax.random.key(0), 64, 64, 4)
    targets = jax.nn.one_hot(y, 4)

    def loss(params):
        return optax.softmax_cross_entropy(network(params, x), targets).mean()

    return params, descend(loss, params, 0.5, 200)[-1]


def models() -> Figure:
    """Four kinds of model become one kind of function."""
    figure, (ax,) = plots(1, 2.2)
    ax.set(xlim=(0, 10), ylim=(0, 4))
    ax.axis("off")
    box = {
        "boxstyle": "round,pad=0.45",
        "facecolor": "#eef3fa",
        "edgecolor": "#4c72b0",
    }
    arrow = {"arrowstyle": "-|>", "color": "#555555"}
    kinds = (
        "linen module, variables",
        "NNX model",
        "Equinox module",
        "function, params",
    )
    for row, kind in enumerate(kinds):
        height = 3.6 - row
        ax.text(
            1.3, height, kind, ha="center", va="center", bbox=box, fontsize=9
        )
        ax.annotate("", (4.0, 2.1), (2.7, height), arrowprops=arrow)
    ax.text(
        5,
        2.1,
        "f(params, x)\nparams",
        ha="center",
        va="center",
        bbox=box,
        fontsize=11,
    )
    uses = (
        "kernels, spectra",
        "linearized models",
        "watch, compare",
        "restore(params):\nyour model",
    )
    for row, use in enumerate(uses):
        height = 3.6 - row
        ax.annotate("", (7.4, height), (6.0, 2.1), arrowprops=arrow)
        ax.text(8.6, height, use, ha="center", va="center", fontsize=9)
    return figure


class Normalised(nn.Module):
    """A network with batch normalisation and dropout."""

    @nn.compact
    def __call__(self, x, train: bool):
        for _ in range(2):
            x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(
                nn.Dense(64)(x)
            )
            x = nn.Dropout(0.5, deterministic=not train)(nn.relu(x))
        return nn.Dense(4)(x)


def linen() -> Figure:
    """The kernel of one network in three modes."""
    x, _ = digits()
    model = Normalised()
    variables = model.init(jax.random.key(0), x, train=False)
    for _ in range(5):  # so that the running statistics have seen data
        _, state = model.apply(
            variables,
            x,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.key(1)},
        )
        variables = {**variables, **state}
    modes = {
        "eval": ntkdiag.functionalize(model, variables),
        "dropout": ntkdiag.functionalize(
            model,
            variables,
            mode="dropout",
            rngs={"dropout": jax.random.key(2)},
        ),
        "train, statistics of one batch": ntkdiag.functionalize(
            model,
            variables,
            mode="train",
            statistics=x[::2],
            rngs={"dropout": jax.random.key(2)},
        ),
    }
    figure, axes = plots(3)
    for ax, (name, fn) in zip(axes, modes.items(), strict=True):
        f, params = fn
        heat_map(
            ax, ntkdiag.ntk(f, params, x).array, f'mode="{name.split(",")[0]}"'
        )
    return figure


def heat_map(ax, matrix: np.ndarray, title: str) -> None:
    """A matrix over examples without ticks."""
    ax.imshow(np.asarray(matrix), cmap="viridis")
    ax.set(title=title, xticks=[], yticks=[], xlabel="examples, by class")


class Adapted(nnx.Module):
    """A network whose first layers have low-rank adapters."""

    def __init__(self, rngs):
        self.first = nnx.LoRALinear(64, 64, lora_rank=4, rngs=rngs)
        self.second = nnx.LoRALinear(64, 64, lora_rank=4, rngs=rngs)
        self.head = nnx.Linear(64, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.first(x))
        return self.head(nnx.relu(self.second(x)))


def nnx_models() -> Figure:
    """The spectrum of all parameters, and of the adapters alone."""
    x, _ = digits()
    model = Adapted(nnx.Rngs(0))
    figure, (ax,) = plots(1)
    for name, trainable in (
        ("all parameters", nnx.Param),
        ("the adapters", nnx.LoRAParam),
    ):
        f, params = ntkdiag.functionalize(model, trainable=trainable)
        spectrum = ntkdiag.spectrum(ntkdiag.ntk(f, params, x, reduction="full"))
        resolved = spectrum.eigenvalues[: spectrum.rank]
        ax.loglog(np.arange(1, len(resolved) + 1), resolved, ".-", label=name)
    ax.set(xlabel="mode", ylabel="eigenvalue of the kernel")
    ax.legend()
    return figure


def equinox() -> Figure:
    """Which layer carries the kernel of an MLP, at two widths."""
    x, _ = digits()
    figure, axes = plots(2)
    for ax, width in zip(axes, (16, 256), strict=True):
        model = eqx.nn.MLP(64, 4, width, 3, key=jax.random.key(0))
        shares = {}
        for layer in range(4):
            f, params = ntkdiag.functionalize(
                model, trainable=f"layers/{layer}/**"
            )
            shares[f"layer {layer}"] = float(
                jnp.trace(ntkdiag.ntk(f, params, x).array)
            )
        total = sum(shares.values())
        ax.bar(
            list(shares),
            [100 * share / total for share in shares.values()],
            color="#4c72b0",
        )
        ax.set(title=f"width {width}", ylabel="% of the trace of the kernel")
    return figure


def plain() -> Figure:
    """The kernel of Fourier features on a line: how far an example teaches its neighbours."""
    x = jnp.linspace(-1, 1, 201)[:, None]
    centre = jnp.zeros((1, 1))
    figure, (ax,) = plots(1)
    for scale in (3.0, 10.0, 30.0):
        frequencies = scale * jax.random.normal(jax.random.key(0), (1, 256))

        def f(params, x, frequencies=frequencies):
            features = jnp.concatenate(
                [jnp.sin(x @ frequencies), jnp.cos(x @ frequencies)], axis=1
            )
            return network(params, features)

        params = one_hidden_layer(jax.random.key(1), 512, 256, 1)
        kernel = ntkdiag.ntk(f, params, x, centre).array[:, 0]
        ax.plot(
            x[:, 0],
            kernel / kernel.max(),
            label=f"frequencies of about {scale:g}",
        )
    ax.set(xlabel="x", ylabel="kernel of x and 0, scaled")
    ax.legend()
    return figure


def kernels() -> Figure:
    """A kernel at initialisation and after training, examples in the order of their classes."""
    x, y = digits()
    params, trained = trained_on_digits(x, y)
    figure, axes = plots(3)
    before = ntkdiag.ntk(network, params, x)
    after = ntkdiag.ntk(network, trained, x)
    heat_map(axes[0], before.array, "at initialisation")
    heat_map(axes[1], after.array, "after training")
    for name, kernel in (
        ("at initialisation", before),
        ("after training", after),
    ):
        axes[2].semilogy(ntkdiag.spectrum(kernel).eigenvalues, ".-", label=name)
    axes[2].set(title="eigenvalues", xlabel="mode")
    axes[2].legend(fontsize=8)
    return figure


def diagnostics() -> Figure:
    """What a spectrum and the labels say together."""
    x, y = digits()
    params = one_hidden_layer(jax.random.key(0), 64, 128, 4)
    kernel = ntkdiag.ntk(network, params, x, reduction="full")
    spectrum = ntkdiag.spectrum(kernel)
    index = np.arange(1, spectrum.size + 1)
    figure, axes = plots(3)
    axes[0].loglog(index, np.abs(spectrum.eigenvalues), ".-")
    axes[0].axhline(spectrum.noise_floor, color="grey", linestyle=":")
    axes[0].set(
        title="which directions exist", xlabel="mode", ylabel="eigenvalue"
    )
    power = ntkdiag.analysis.modes(kernel, y, centred=True).label_power
    axes[1].semilogx(index, power, label="labels")
    shuffled = np.random.default_rng(0).permutation(y)
    of_shuffled = ntkdiag.analysis.modes(kernel, shuffled, centred=True)
    axes[1].semilogx(index, of_shuffled.label_power, label="shuffled")
    axes[1].set(
        title="which ones the labels use",
        xlabel="mode",
        ylabel="share of the labels",
    )
    axes[1].legend(fontsize=8)
    critical = float(ntkdiag.critical_learning_rate(kernel, loss="mse"))
    modes = ntkdiag.analysis.modes(kernel, descent=0.5 * critical)
    steps = modes.time_constants
    axes[2].loglog(np.arange(1, len(steps) + 1), steps, ".-")
    axes[2].set(title="when they are learned", xlabel="mode", ylabel="steps")
    return figure


def examples_and_batches() -> Figure:
    """The noise scale while the loss falls, wrong labels, and what new digits do to old ones."""
    figure, (of_batch, of_labels, of_tasks) = plots(3)
    images, labels = load_digits(return_X_y=True)
    x, y = (images[:200] / 16).astype(np.float32), labels[:200].copy()
    rng = np.random.default_rng(0)
    wrong = rng.permutation(200) < 20
    y[wrong] = (y[wrong] + rng.integers(1, 10, 20)) % 10

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(
            network(params, x), y
        ).mean()

    params = one_hidden_layer(jax.random.key(0), 64, 64, 10)
    path = descend(loss, params, 0.2, 200)
    steps = [0, 10, 25, 50, 100, 200]
    kernels = [
        ntkdiag.gradient_kernel(network, path[step], x, y, loss="cross_entropy")
        for step in steps
    ]

    scales = [ntkdiag.analysis.noise_scale(kernel) for kernel in kernels]
    values, lower, upper = (
        np.array([float(getattr(scale, name)) for scale in scales])
        for name in ("value", "lower", "upper")
    )
    of_batch.plot(steps, values, ".-", color=A_COLOUR)
    of_batch.fill_between(steps, lower, upper, color=A_COLOUR, alpha=0.2)
    of_batch.set_yscale("log")
    of_batch.set(xlabel="step", title="noise scale, in examples")

    scores = sum(
        np.asarray(ntkdiag.analysis.self_influence(kernel))
        for kernel in kernels
    )
    order = np.argsort(-scores)
    colours = np.where(wrong[order], B_COLOUR, "#c8ccd4")
    of_labels.bar(
        np.arange(60), scores[order][:60], color=colours[:60], width=1
    )
    of_labels.set(xlabel="rank of the example", title="self-influence")
    of_labels.text(
        0.95, 0.9, "wrong labels", color=B_COLOUR, ha="right",
        transform=of_labels.transAxes,
    )  # fmt: skip

    old, new = labels[:600] < 5, labels[:600] >= 5
    inputs = (images[:600] / 16).astype(np.float32)
    first, second = ((inputs[rows], labels[:600][rows]) for rows in (old, new))

    def loss_on_old(params):
        outputs = network(params, first[0])
        return optax.softmax_cross_entropy_with_integer_labels(
            outputs, first[1]
        ).mean()

    params = descend(loss_on_old, params, 0.5, 100)[-1]
    counts = [1, 2, 4, 8, 12, 16]
    found = [
        ntkdiag.interference(
            network, params, old=first, new=second, loss="cross_entropy",
            optimizer=optax.adam(3e-4), steps=count,
        )
        for count in counts
    ]  # fmt: skip
    of_tasks.plot(
        counts,
        [one.change for one in found],
        ".-",
        color=A_COLOUR,
        label="predicted",
    )
    of_tasks.plot(
        counts, [one.of_network for one in found], "o", mfc="none", color=B_COLOUR,
        label="network",
    )  # fmt: skip
    of_tasks.set(
        xlabel="steps on digits 5 to 9", title="loss on 0 to 4, change"
    )
    of_tasks.legend(frameon=False)
    return figure


def linearize() -> Figure:
    """A network, its linear and its quadratic model, near and far from where they are taken."""
    x = jnp.linspace(-2, 2, 200)[:, None]
    params = one_hidden_layer(jax.random.key(3), 1, 32, 1)
    direction = one_hidden_layer(jax.random.key(4), 1, 32, 1)
    linear = ntkdiag.linearize(network, params)
    quadratic = ntkdiag.taylor_expand(network, params, 2)
    figure, axes = plots(3)
    for ax, distance in zip(axes, (0.1, 0.5, 1.0), strict=True):
        moved = jax.tree.map(
            lambda p, d, t=distance: p + t * d, params, direction
        )
        ax.plot(x, network(moved, x), color="black", label="network")
        ax.plot(x, linear(moved, x), "--", label="linear")
        ax.plot(x, quadratic(moved, x), ":", label="quadratic")
        ax.set(title=f"parameters moved by {distance:g}", xlabel="x")
    axes[0].legend(fontsize=8)
    return figure


def predictions() -> Figure:
    """Outputs during training as predicted from the kernel at initialisation, and as they were."""
    x = jax.random.normal(jax.random.key(1), (16, 4))
    x_test = jax.random.normal(jax.random.key(2), (3, 4))
    y = jnp.sin(2 * x[:, :1])
    marks = np.arange(0, 401, 20)
    figure, axes = plots(2)
    for ax, width in zip(axes, (16, 4096), strict=True):
        params = one_hidden_layer(jax.random.key(0), 4, width, 1)
        kernel = ntkdiag.ntk(network, params, x, reduction="full")
        kernel_test = ntkdiag.ntk(network, params, x_test, x, reduction="full")
        rate = 0.5 * float(ntkdiag.critical_learning_rate(kernel, loss="mse"))
        foreseen = predict.gradient_descent(
            kernel,
            y,
            rate,
            marks,
            kernel_test=kernel_test,
            f0=network(params, x),
            f0_test=network(params, x_test),
        )

        def loss(params):
            return 0.5 * jnp.mean((network(params, x) - y) ** 2)

        path = descend(loss, params, rate, 400)
        seen = np.stack([network(path[t], x_test)[:, 0] for t in marks])
        for example in range(3):
            colour = f"C{example}"
            ax.plot(marks, foreseen.test[:, example, 0], color=colour)
            ax.plot(marks, seen[:, example], ".", color=colour)
        ax.set(
            title=f"width {width}",
            xlabel="step",
            ylabel="outputs on test examples",
        )
    return figure


def matrix_free() -> Figure:
    """The largest eigenvalues of a kernel that is never formed, and what they are exactly."""
    x, _ = digits(400, 10)
    params = one_hidden_layer(jax.random.key(0), 64, 64, 10)
    exact = ntkdiag.spectrum(
        ntkdiag.ntk(network, params, x, reduction="full")
    ).eigenvalues
    top = ntkdiag.top_spectrum(ntkdiag.NTKOperator(network, params, x), k=12)
    figure, (ax,) = plots(1)
    ax.loglog(
        np.arange(1, len(exact) + 1),
        np.maximum(exact, 0),
        color="grey",
        label="dense",
    )
    ax.loglog(
        np.arange(1, 13),
        top.eigenvalues,
        "o",
        label="by products with the kernel",
    )
    ax.set(
        xlabel="mode", ylabel="eigenvalue", ylim=(exact[0] * 1e-7, exact[0] * 2)
    )
    ax.legend()
    return figure


def track() -> Figure:
    """When the kernel of a network moves, and from where on it is nearly linear."""
    x, y = digits(40, 4)
    params = one_hidden_layer(jax.random.key(0), 64, 64, 4)
    # Small at the beginning: features are learned.
    params = jax.tree.map(lambda leaf: 0.2 * leaf, params)
    targets = jax.nn.one_hot(y, 4)

    def loss(params):
        return optax.softmax_cross_entropy(network(params, x), targets).mean()

    path = descend(loss, params, 0.5, 512)
    steps = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    run = ntkdiag.track(
        {step: path[step] for step in steps}, model=network, train=(x, y)
    )
    figure, axes = plots(3, height=2.4)
    run.plot.eigenvalues(ax=axes[0])
    axes[0].set(title="eigenvalues", ylabel="eigenvalue")
    run.plot.distance_centred(ax=axes[1])
    axes[1].set(title="kernel distance")
    run.plot.e1(ax=axes[2])
    axes[2].set(title="linearization error")
    return figure


def deep_network(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """A network of several hidden layers."""
    for weight in weights[:-1]:
        x = jnp.tanh(x @ weight)
    return x @ weights[-1]


@dataclasses.dataclass(frozen=True)
class WatchedRun:
    """A training that was watched.

    Attributes:
        losses: The loss before each step.
        steps: The steps that were measured.
        numbers: What was measured.
        path: The parameters then, `[measurements ...]`.
    """

    losses: np.ndarray
    steps: np.ndarray
    numbers: ntkdiag.monitor.InMemory
    path: dict | list

    def draw(self, ax, name: str, **style) -> None:
        """A number over the steps, with its interval."""
        (line,) = ax.plot(self.steps, self.numbers.series(name), **style)
        ax.fill_between(
            self.steps,
            self.numbers.series(f"{name}_lower"),
            self.numbers.series(f"{name}_upper"),
            color=line.get_color(),
            alpha=0.25,
            lw=0,
        )


def train_watched(
    optimizer, f, objective, params, steps: int, **options
) -> WatchedRun:
    """Train with a watched optimizer, in one compiled loop."""
    memory = ntkdiag.monitor.InMemory()
    tx = ntkdiag.watch(optimizer, f, writers=memory, **options)

    def step(carry, _):
        params, state = carry
        value, gradient = jax.value_and_grad(objective)(params)
        updates, state = tx.update(gradient, state, params)
        moved = optax.apply_updates(params, updates)
        return (moved, state), (value, moved)

    @jax.jit
    def train(carry):
        return jax.lax.scan(step, carry, length=steps)[1]

    losses, path = train((params, tx.init(params)))
    jax.effects_barrier()  # all rows are written
    measured = np.asarray(memory.steps)
    # Row t is of the parameters after t updates.
    path = jax.tree.map(lambda leaf: np.asarray(leaf)[measured - 1], path)
    return WatchedRun(np.asarray(losses), measured, memory, path)


def half_squared_error(f, x, targets):
    """The loss "mse" of a function of parameters."""

    def loss(params):
        squares = (f(params, x) - targets) ** 2
        return 0.5 * jnp.mean(jnp.sum(squares, axis=1))

    return loss


def deep_weights(scale: float) -> list[jax.Array]:
    """Parameters of `deep_network` for digits."""
    weights = []
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = ((64, 32), (32, 32), (32, 10))
    for key, shape in zip(keys, sizes, strict=True):
        weights.append(scale * jax.random.normal(key, shape) / shape[0] ** 0.5)
    return weights


def digits_in_training(
    optimizer, scale: float, steps: int, every: int
) -> WatchedRun:
    """Training on 250 digits, watched on every second one."""
    x, y = digits(250, 10)
    targets = jax.nn.one_hot(y, 10)
    return train_watched(
        optimizer,
        deep_network,
        half_squared_error(deep_network, x, targets),
        deep_weights(scale),
        steps,
        train=(x[::2], targets[::2]),
        loss="mse",
        every=every,
        instruments="margin",
    )


def draw_loss(ax, run: WatchedRun) -> None:
    """The loss of training, on a logarithmic axis."""
    ax.plot(run.losses, color="black", lw=1)
    ax.set(title="loss", xlabel="step")
    logarithmic(ax, True, x=False)


def draw_margin(ax, run: WatchedRun, title: str) -> None:
    """The margin with its interval, and the edge of stability."""
    ax.axhline(1, color="grey", linestyle=":")
    run.draw(ax, "margin", color=A_COLOUR)
    ax.set(title=title, xlabel="step", ylim=(0, None))


def monitor() -> Figure:
    """Gradient descent comes to the edge of stability and stays."""
    run = digits_in_training(optax.sgd(0.2), scale=0.5, steps=1500, every=15)
    figure, axes = plots(2)
    draw_loss(axes[0], run)
    draw_margin(axes[1], run, "margin: rises to 1 and stays")
    axes[1].annotate(
        "edge of stability", (1500, 0.9), ha="right", va="top", color="grey"
    )
    return figure


def monitor_adam() -> Figure:
    """Adam does the same, by a margin that the sharpness does not show."""
    adam = optax.adam(5e-4, b2=0.99)
    run = digits_in_training(adam, scale=1.0, steps=1500, every=15)
    x, y = digits(250, 10)
    # The margin of gradient descent at a rate of 2 is the sharpness.
    sharpness = ntkdiag.monitor.measure(
        deep_network,
        train=(x[::2], jax.nn.one_hot(y[::2], 10)),
        loss="mse",
        optimizer=optax.sgd(2.0),
        instruments="margin",
    )

    @jax.jit
    def measured(weights):
        return sharpness(weights, optax.sgd(2.0).init(weights))["margin"]

    figure, axes = plots(3)
    draw_loss(axes[0], run)
    curve = jax.lax.map(measured, run.path)
    axes[1].plot(run.steps, curve, color=B_COLOUR)
    axes[1].set(title="sharpness: tells nothing", xlabel="step")
    axes[1].set_ylim(0, 1.2 * curve.max())
    draw_margin(axes[2], run, "margin: rises to 1")
    return figure


def losses() -> Figure:
    """The margin of a language model on padded sentences, with the mask and without."""
    n, length, vocabulary, width = 32, 12, 16, 12
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, vocabulary, (n, length + 1))
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "embed": jax.random.normal(first, (vocabulary, width)) / 2,
        "out": jax.random.normal(second, (width, vocabulary)) / width**0.5,
    }

    def model(params, tokens):
        # Padding has token 0, which is zeros.
        embedded = params["embed"][tokens] * (tokens > 0)[..., None]
        return jnp.tanh(embedded) @ params["out"]

    shares, masked, unmasked = [], [], []
    for kept in range(2, length + 1):
        is_text = np.broadcast_to(np.arange(length) < kept, (n, length))
        x = np.where(is_text, tokens[:, :-1], 0)
        operator = ntkdiag.NTKOperator(model, params, x)
        y = np.where(is_text, tokens[:, 1:], 0)
        for margins, loss in (
            (masked, ntkdiag.losses.CrossEntropy(ignore=0)),
            (unmasked, ntkdiag.losses.CrossEntropy()),
        ):
            margin = ntkdiag.stability_margin(operator, 20.0, loss=loss, y=y)
            margins.append(float(margin))
        shares.append(1 - kept / length)

    figure, (ax,) = plots(1)
    ax.plot(shares, masked, color=A_COLOUR, label="ignore=0: text alone")
    ax.plot(shares, unmasked, color=B_COLOUR, label="padding as text")
    ax.set(title="margin", xlabel="share of padding", ylim=(0, None))
    ax.legend(fontsize=8)
    return figure


def several_terms() -> Figure:
    """Residual and boundary of a PINN: spectra, and the margin against the weight."""
    keys = jax.random.split(jax.random.key(0), 3)
    scales = {"a": 2.0, "b": 1.0, "c": 32**-0.5}
    params = {
        name: scale * jax.random.normal(key, (32,))
        for (name, scale), key in zip(scales.items(), keys, strict=True)
    }

    def u(params, x):
        return jnp.tanh(params["a"] * x + params["b"]) @ params["c"]

    def terms(params, x):
        second = jax.grad(jax.grad(u, 1), 1)
        point, is_boundary = x
        residual = jax.vmap(second, (None, 0))(params, point)
        return jnp.where(
            is_boundary, jax.vmap(u, (None, 0))(params, point), residual
        )

    n = 100
    point = np.append(np.linspace(0, 1, n + 2)[1:-1], [0.0, 1.0])
    is_boundary = np.arange(n + 2) >= n
    x = (point.astype(np.float32), is_boundary)
    kernel = ntkdiag.ntk(terms, params, x, reduction="full")
    zeros = np.zeros(n + 2, np.float32)

    def margin(of_residual, of_boundary):
        weights = np.where(is_boundary, of_boundary / 2, of_residual / n)
        return float(
            ntkdiag.stability_margin(
                kernel,
                1e-4,
                loss=ntkdiag.losses.MSE(denominator=0.5),
                y=ntkdiag.losses.Weighted(zeros, weights),
            )
        )

    figure, (left, right) = plots(2)
    matrix = np.asarray(kernel.matrix)
    for name, rows, colour in (
        ("residual", ~is_boundary, A_COLOUR),
        ("boundary", is_boundary, B_COLOUR),
    ):
        values = np.linalg.eigvalsh(matrix[np.ix_(rows, rows)])[::-1]
        values = values[:10] / rows.sum()
        left.plot(
            np.arange(1, len(values) + 1),
            values,
            "o-",
            color=colour,
            label=name,
        )
    logarithmic(left, True, x=False)
    left.set(title="eigenvalues of each term, per point", xlabel="mode")
    left.legend(fontsize=8)

    ratios = np.logspace(-1, 3, 25)
    both = [margin(1.0, ratio) for ratio in ratios]
    right.plot(ratios, both, color="#333333", label="the sum")
    right.axhline(margin(1.0, 0.0), color=A_COLOUR, label="residual", ls="--")
    alone = [margin(0.0, ratio) for ratio in ratios]
    right.plot(ratios, alone, "--", color=B_COLOUR, label="boundary")
    right.set(
        xscale="log",
        yscale="log",
        title="margin",
        xlabel="weight of the boundary",
        ylim=(min(both) / 4, max(both) * 2),
    )
    right.legend(fontsize=8)
    return figure


def lora() -> Figure:
    """How well each checkpoint predicts the others, and which adapters are in the kernel."""
    page = (IMAGES.parent / "lora.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(
        r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    ):
        exec(block, names)
    run, found = names["run"], names["found"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    run.plot.e1(ax=left)
    left.set_title("e1: linearized at row, for column")
    leaves = found.movement[:-1]
    places = np.arange(len(leaves))
    right.barh(
        places - 0.2, [leaf.share_a for leaf in leaves], 0.4, label="start"
    )
    right.barh(
        places + 0.2, [leaf.share_b for leaf in leaves], 0.4, label="end"
    )
    right.set_yticks(places, [leaf.path for leaf in leaves])
    right.invert_yaxis()
    right.set_xlabel("share of the trace of the kernel")
    right.legend()
    return figure


def neural_tangents() -> Figure:
    """A full kernel in the axes of neural-tangents, and as the matrix it stands for."""
    x, _ = digits()
    kernel_fn = nt.empirical_ntk_fn(
        lambda params, x: network(params, x), trace_axes=()
    )
    params = one_hidden_layer(jax.random.key(0), 64, 32, 4)
    full = kernel_fn(x, None, params)  # [n m o p]
    traced = nt.empirical_ntk_fn(lambda params, x: network(params, x))(
        x, None, params
    )
    figure, axes = plots(3)
    rows = len(x) * 4
    matrix = full.transpose(0, 2, 1, 3).reshape(
        rows, rows
    )  # [n m o p] -> [(n o) (m p)]
    heat_map(axes[0], traced, "trace_axes=(-1,): [n m]")
    heat_map(axes[1], full[:, :, 0, 1], "trace_axes=(): [n m, 0, 1]")
    heat_map(axes[2], matrix, "as a matrix [(n o) (m p)]")
    axes[2].set(xlabel="examples times outputs")
    return figure


def terminal(title: str, shown: object, lines: int, width: int = 100) -> str:
    """The first lines of what a terminal shows, as SVG without outside fonts."""
    rehearsal = Console(record=True, width=width, file=io.StringIO())
    rehearsal.print(shown)
    text = rehearsal.export_text(styles=True).splitlines()[:lines]
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text.from_ansi("\n".join(text)))
    picture = console.export_svg(title=title, theme=DEFAULT_TERMINAL_THEME)
    return re.sub(r"@font-face \{.*?\}\n", "", picture, flags=re.DOTALL)


def selfcheck() -> str:
    """What a check of a model says."""
    x, _ = digits()
    model = Normalised()
    variables = model.init(jax.random.key(0), x, train=False)
    _, state = model.apply(
        variables,
        x,
        train=True,
        mutable=["batch_stats"],
        rngs={"dropout": jax.random.key(1)},
    )
    check = ntkdiag.selfcheck(model, {**variables, **state}, x)
    return terminal("ntkdiag.selfcheck(model, variables, x)", check, 40)


def command_line() -> str:
    """What a comparison of two checkpoints says."""
    x, y = digits()
    params, trained = trained_on_digits(x, y)
    with tempfile.TemporaryDirectory() as folder:
        for step, tree in ((0, params), (200, trained)):
            np.savez(pathlib.Path(folder) / f"{step}.npz", **tree)
        comparison = ntkdiag.compare(
            f"{folder}@0",
            f"{folder}@200",
            model=ntkdiag.functionalize(network, params),
            train=(x, y),
            loss="cross_entropy",
            descent=0.5,
        )
    screen = Screen(comparison, more="See --all, --out report.html.")
    return terminal(
        "ntkdiag compare checkpoints@0 checkpoints@200 ...",
        screen,
        36,
        width=80,
    )


def errors() -> str:
    """What an error says."""
    x, _ = digits()
    params = one_hidden_layer(jax.random.key(0), 64, 64, 4)
    kernel = ntkdiag.ntk(network, params, x)
    try:
        ntkdiag.stability_margin(kernel, 0.1, loss="cross_entropy")
    except ntkdiag.errors.InvalidInputError as error:
        message = f"{type(error).__name__}: {error}"
    lines = []
    for line in message.splitlines():
        lines.extend(textwrap.wrap(line, 96, subsequent_indent="    "))
    return terminal("an error has four parts", Text("\n".join(lines)), 12)


PICTURES = {
    "models": models,
    "linen": linen,
    "nnx": nnx_models,
    "equinox": equinox,
    "plain": plain,
    "kernels": kernels,
    "diagnostics": diagnostics,
    "examples_and_batches": examples_and_batches,
    "linearize": linearize,
    "predict": predictions,
    "matrix_free": matrix_free,
    "track": track,
    "monitor": monitor,
    "monitor_adam": monitor_adam,
    "losses": losses,
    "several_terms": several_terms,
    "lora": lora,
    "neural-tangents": neural_tangents,
    "selfcheck": selfcheck,
    "command_line": command_line,
    "errors": errors,
}


def main() -> None:
    """Draw the pictures that are named, or all."""
    matplotlib.use("agg")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("guides", nargs="*", choices=[*PICTURES, []])
    parser.add_argument("--out", type=pathlib.Path, default=IMAGES)
    arguments = parser.parse_args()
    for name in arguments.guides or PICTURES:
        picture = PICTURES[name]()
        if isinstance(picture, str):
            (arguments.out / f"guide_{name}.svg").write_text(picture)
        else:
            picture.savefig(arguments.out / f"guide_{name}.png", dpi=100)
        print(name)


if __name__ == "__main__":
    main()
