"""A step of the linearized model against one of the network: `python -m benchmarks.linearized`.

Both steps (gradient of the loss by all parameters) alternate in one process, so that whatever else
the machine does falls on both; what counts is the ratio of the medians of their CPU time.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
from flax import linen as nn
from rich.console import Console
from rich.table import Table

from ntkdiag import functionalize, linearize, taylor_expand


class ConvNet(nn.Module):
    width: int = 32

    @nn.compact
    def __call__(self, x):
        for scale in (1, 2):
            x = nn.relu(nn.Conv(scale * self.width, (3, 3))(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(10)(jnp.mean(x, axis=(1, 2)))


def mlp(tiny):
    width, n = (16, 4) if tiny else (512, 128)
    layers = [nn.Dense(width), nn.relu, nn.Dense(width), nn.relu, nn.Dense(10)]
    return nn.Sequential(layers), jnp.ones((n, 256))


def convnet(tiny):
    width, side, n = (8, 8, 2) if tiny else (32, 32, 32)
    return ConvNet(width), jnp.ones((n, side, side, 3))


NETWORKS = {"MLP": mlp, "ConvNet": convnet}


def taylor_models(f, params, degrees):
    """Degree -> function; the network itself is degree 0."""
    models = {0: f}
    for degree in degrees:
        models[degree] = linearize(f, params) if degree == 1 else taylor_expand(f, params, degree)
    return models


def gradient_step(model):
    """The gradient of a loss of the model by its parameters, compiled."""
    return jax.jit(jax.grad(lambda params, x: jnp.mean(model(params, x) ** 2)))


def measure(module, x, rounds, degrees=(1, 2)):
    """CPU seconds of a step of the network, and of its Taylor models, round by round."""
    f, params = functionalize(module, module.init(jax.random.key(0), x))
    moved = jax.tree.map(lambda p: p * 1.01, params)
    models = taylor_models(f, params, degrees)
    steps = {degree: gradient_step(model) for degree, model in models.items()}
    seconds = {degree: [] for degree in steps}
    for round_number in range(rounds + 1):
        for degree, step in steps.items():
            begun = time.process_time()
            jax.block_until_ready(step(moved, x))
            if round_number > 0:  # the first one compiles
                seconds[degree].append(time.process_time() - begun)
    return seconds


def ratios(seconds):
    """Median CPU time of each Taylor model over that of the network."""
    median = {degree: statistics.median(values) for degree, values in seconds.items()}
    return {degree: median[degree] / median[0] for degree in median if degree > 0}


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linearized", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tiny", action="store_true", help="smoke-test sizes")
    arguments = parser.parse_args(argv)
    table = Table(title="CPU time of a training step / the network's")
    table.add_column("network")
    for column in ("parameters", "linear", "quadratic"):
        table.add_column(column, justify="right")
    ratios_of: dict = {}
    for name, make in NETWORKS.items():
        module, x = make(arguments.tiny)
        ratios_of[name] = ratios(measure(module, x, arguments.rounds))
        shapes = jax.eval_shape(module.init, jax.random.key(0), x)
        size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        linear, quadratic = (f"{ratios_of[name][degree]:.2f}" for degree in (1, 2))
        table.add_row(name, f"{size:,}", linear, quadratic)
    Console().print(table)
    return ratios_of


if __name__ == "__main__":
    main()
