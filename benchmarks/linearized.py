"""`python -m benchmarks.linearized`: a training step of the linearized model against one of the network itself.

Both steps (gradient of the loss by all parameters) alternate in one process, so that whatever else the machine does
falls on both; what counts is the ratio of the medians of their CPU time.
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
    return nn.Sequential([nn.Dense(width), nn.relu, nn.Dense(width), nn.relu, nn.Dense(10)]), jnp.ones((n, 256))


def convnet(tiny):
    side, n = (8, 2) if tiny else (32, 32)
    return ConvNet(8 if tiny else 32), jnp.ones((n, side, side, 3))


NETWORKS = {"MLP": mlp, "ConvNet": convnet}


def measure(module, x, rounds, degrees=(1, 2)):
    """CPU seconds of a step of the network, and of its Taylor models, round by round."""
    f, params = functionalize(module, module.init(jax.random.key(0), x))
    models = {0: f} | {k: linearize(f, params) if k == 1 else taylor_expand(f, params, k) for k in degrees}
    moved = jax.tree.map(lambda p: p * 1.01, params)
    steps = {k: jax.jit(jax.grad(lambda p, x, g=g: jnp.mean(g(p, x) ** 2))) for k, g in models.items()}
    seconds = {k: [] for k in steps}
    for round_number in range(rounds + 1):
        for k, step in steps.items():
            begun = time.process_time()
            jax.block_until_ready(step(moved, x))
            if round_number:  # the first one compiles
                seconds[k].append(time.process_time() - begun)
    return seconds


def ratios(seconds):
    """Median CPU time of each Taylor model over that of the network."""
    median = {k: statistics.median(values) for k, values in seconds.items()}
    return {k: median[k] / median[0] for k in median if k}


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linearized", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tiny", action="store_true", help="smoke-test sizes")
    arguments = parser.parse_args(argv)
    table = Table(title="CPU time of a training step / the network's")
    for column in ("network", "parameters", "linear", "quadratic"):
        table.add_column(column, justify="left" if column == "network" else "right")
    found = {}
    for name, make in NETWORKS.items():
        module, x = make(arguments.tiny)
        found[name] = ratios(measure(module, x, arguments.rounds))
        shapes = jax.eval_shape(module.init, jax.random.key(0), x)
        size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        table.add_row(name, f"{size:,}", *(f"{found[name][k]:.2f}" for k in (1, 2)))
    Console().print(table)
    return found


if __name__ == "__main__":
    main()
