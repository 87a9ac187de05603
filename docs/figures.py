"""Draw the pictures of the pages: `python docs/figures.py [name ...]`.

Each function draws one picture from numbers it computes and is saved as
`docs/images/guide_<name>.png`. All together take some minutes on two cores.
"""

import argparse
import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import ntkdiag

IMAGES = pathlib.Path(__file__).parent / "images"
WIDTH = 8.0  # inches, that of the text
A_COLOUR, B_COLOUR = "#3b7dd8", "#e07b1f"


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


def heat_map(ax, matrix: np.ndarray, title: str) -> None:
    """A matrix over examples without ticks."""
    ax.imshow(np.asarray(matrix), cmap="viridis")
    ax.set(title=title, xticks=[], yticks=[], xlabel="examples, by class")


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
    ax.set_yscale("log")


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


PICTURES = {
    "kernels": kernels,
    "diagnostics": diagnostics,
    "examples_and_batches": examples_and_batches,
    "linearize": linearize,
    "track": track,
    "monitor": monitor,
    "losses": losses,
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
        picture.savefig(arguments.out / f"guide_{name}.png", dpi=100)
        print(name)


if __name__ == "__main__":
    main()
