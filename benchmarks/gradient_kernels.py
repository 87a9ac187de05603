"""The gradient kernel beside stacked gradients: `python -m benchmarks.gradient_kernels`.

Both compute G[n, m] = <grad l_n, grad l_m> of the cross-entropy, and alternate in one process, so
that whatever else the machine does falls on both. What is not ours is written as one would:
`jax.vmap(jax.grad(loss))`, flat, times its transpose. Memory is the peak of a compiled call.
"""

import argparse
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


def measure(workload, n, rounds):
    """Seconds of CPU time by round, and bytes at the peak, of both; and how far they are apart."""
    f, params = workload.in_jax(), jax.tree.map(jnp.asarray, workload.params())
    x = jnp.asarray(workload.module.inputs(np.random.default_rng(1), n, **workload.sizes))
    y = jnp.asarray(np.random.default_rng(2).integers(0, workload.classes, n))
    gram = stacked(f)
    calls = {
        OURS: lambda: np.asarray(gradient_kernel(f, params, x, y, loss="cross_entropy").array),
        STACKED: lambda: np.asarray(gram(params, x, y)),
    }
    kernels = {name: call() for name, call in calls.items()}  # compiled
    apart = np.abs(kernels[OURS] - kernels[STACKED]).max() / np.abs(kernels[STACKED]).max()
    seconds = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begun = time.process_time()
            call()
            seconds[name].append(time.process_time() - begun)
    peaks = {name: memory.peak(call) for name, call in calls.items()}
    return seconds, peaks, float(apart)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gradient_kernels", description=__doc__
    )
    parser.add_argument("--workloads", default=",".join(NAMES))
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="smoke-test sizes")
    arguments = parser.parse_args(argv)
    title = "The gradient kernel, cross-entropy: CPU seconds, and MiB at the peak"
    table = Table(title=title)
    for column in ("network", "examples", OURS, STACKED, "ratio", "MiB", STACKED, "apart"):
        table.add_column(column, justify="left" if column == "network" else "right")
    results = {}
    for name in arguments.workloads.split(","):
        workload = workloads.get(name, arguments.tiny)
        n = workload.n if arguments.tiny else arguments.examples
        seconds, peaks, apart = measure(workload, n, arguments.rounds)
        ours, theirs = (statistics.median(seconds[one]) for one in (OURS, STACKED))
        in_mib = ["-" if peaks[one] is None else f"{peaks[one] / 2**20:.0f}" for one in peaks]
        results[name] = theirs / ours
        times = (f"{ours:.3f}", f"{theirs:.3f}", f"{theirs / ours:.1f}")
        table.add_row(workload.title, str(n), *times, *in_mib, f"{apart:.0e}")
    Console(width=120).print(table)
    return results


if __name__ == "__main__":
    main()
