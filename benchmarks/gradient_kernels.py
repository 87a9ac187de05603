"""The gradient kernel beside stacked gradients: `python -m benchmarks.gradient_kernels`.

Both compute G[n, m] = <grad l_n, grad l_m> of the cross-entropy, of one network and the same
examples, in turns, so that whatever else the machine does falls on both. The other one is what one
writes without a library: `jax.vmap(jax.grad(loss))`, flat, times its transpose. Memory is the peak
of a call.
"""

import argparse
import dataclasses
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from rich.console import Console
from rich.table import Table

from benchmarks import memory, workloads
from ntkdiag import gradient_kernel
from ntkdiag.losses import CrossEntropy

NAMES = ("W1", "W3", "W4", "W5", "W7")
OURS, STACKED = "ntkdiag", "vmap(grad)"


def stacked(f):
    """The Gram matrix of stacked gradients."""

    def of_one(params, x, y):
        gradient = jax.grad(lambda p: CrossEntropy()(f(p, x[None]), y[None]))(params)
        return ravel_pytree(gradient)[0]

    @jax.jit
    def gram(params, x, y):
        rows = jax.vmap(of_one, (None, 0, 0))(params, x, y)
        return jnp.matmul(rows, rows.T, precision="highest")

    return gram


def measure(workload, rounds):
    """By name: CPU seconds of each round and peak bytes of a call; and how far they are apart."""
    f, params = workload.in_jax(), jax.tree.map(jnp.asarray, workload.params())
    x = jnp.asarray(workload.inputs())
    y = jnp.asarray(np.random.default_rng(2).integers(0, workload.classes, workload.n))
    gram = stacked(f)
    calls = {
        OURS: lambda: np.asarray(gradient_kernel(f, params, x, y, loss="cross_entropy").array),
        STACKED: lambda: np.asarray(gram(params, x, y)),
    }
    ours, theirs = (call() for call in calls.values())  # compiled
    seconds = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begun = time.process_time()
            call()
            seconds[name].append(time.process_time() - begun)
    peaks = {name: memory.peak(call) for name, call in calls.items()}
    return seconds, peaks, float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gradient_kernels", description=__doc__
    )
    parser.add_argument("--workloads", default=",".join(NAMES))
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="smoke-test sizes")
    arguments = parser.parse_args(argv)
    table = Table(title="The gradient kernel, cross-entropy: CPU seconds, and MiB at the peak")
    for column in ("network", "examples", "by", "CPU", "ratio", "MiB", "apart"):
        table.add_column(column, justify="left" if column in ("network", "by") else "right")
    for name in arguments.workloads.split(","):
        workload = workloads.get(name, arguments.tiny)
        n = workload.n if arguments.tiny else arguments.examples
        workload = dataclasses.replace(workload, n=n)
        seconds, peaks, apart = measure(workload, arguments.rounds)
        ours = statistics.median(seconds[OURS])
        for way, values in seconds.items():
            median = statistics.median(values)
            mebibytes = "-" if peaks[way] is None else f"{peaks[way] / 2**20:.0f}"
            numbers = f"{median:.3f}", f"{median / ours:.1f}", mebibytes, f"{apart:.0e}"
            table.add_row(workload.title, str(n), way, *numbers)
        table.add_section()
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
