"""The gradient kernel beside stacked gradients: `python -m benchmarks.gradient_kernels`.

All compute G[n, m] = <grad l_n, grad l_m> of the cross-entropy, of one network and the same
examples, in turns, so that whatever else the machine does falls on all of them. In this process
what is not ours is written as one would: `jax.vmap(jax.grad(loss))`, flat, times its transpose.
With `--torch-python` the peers of `benchmarks.peers.torch_gradients` run beside it, in a process
each. Memory is the peak of a call.
"""

import argparse
import contextlib
import dataclasses
import pathlib
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from rich.console import Console
from rich.table import Table

from benchmarks import memory, workloads
from benchmarks.gradient_inputs import labels_of, of_size
from benchmarks.peers.torch_gradients import METHODS
from benchmarks.process import Failed, Process
from ntkdiag import gradient_kernel
from ntkdiag.losses import CrossEntropy

NAMES = ("W1", "W3", "W4", "W5", "W7")
OURS, STACKED = "ntkdiag", "vmap(grad)"
LIMIT = 300.0  # seconds for one answer
MEMORY_LIMIT = 14 * 2**30


@dataclasses.dataclass
class Measured:
    """One way of computing it.

    Attributes:
        seconds: Of processor time, by round.
        peak: Bytes of one call above those before; None where they cannot be read.
        apart: Largest difference to the stacked gradients over the largest entry.
        failed: Why there are no numbers.
    """

    seconds: list[float] = dataclasses.field(default_factory=list)
    peak: int | None = None
    apart: float = 0.0
    failed: str | None = None


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


def in_turn(calls, others, results, rounds):
    """Ours and the others, one after the other: CPU seconds of each round, then memory."""
    for _ in range(rounds):
        for name, call in calls.items():
            begun = time.process_time()
            call()
            results[name].seconds.append(time.process_time() - begun)
        for name in list(others):
            attempt(results, others, name, run)
    for name, call in calls.items():
        results[name].peak = memory.peak(call)
    for name in list(others):
        attempt(results, others, name, remember)


def measure(workload, n, rounds, torch_python=None, tiny=False):
    """What was measured of each way, by name, and how far they are apart at most."""
    workload = of_size(workload, n)
    f, params = workload.in_jax(), jax.tree.map(jnp.asarray, workload.params())
    x, y = jnp.asarray(workload.inputs()), jnp.asarray(labels_of(workload))
    gram = stacked(f)
    calls = {
        OURS: lambda: np.asarray(gradient_kernel(f, params, x, y, loss="cross_entropy").array),
        STACKED: lambda: np.asarray(gram(params, x, y)),
    }
    kernels = {name: call() for name, call in calls.items()}  # compiled
    results = {name: Measured() for name in calls}
    results[OURS].apart = _apart(kernels[OURS], kernels[STACKED])
    with contextlib.ExitStack() as stack:
        path = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()), "gram.npy")
        np.save(path, kernels[STACKED])
        others = {}
        for method in METHODS if torch_python else ():
            name = f"torch, {method}"
            results[name] = Measured()
            others[name] = _started(torch_python, workload, method, tiny)
            stack.callback(others[name].close)
            attempt(results, others, name, lambda p, r: compare(p, r, str(path)))
        in_turn(calls, others, results, rounds)
    return results, max(result.apart for result in results.values())


def _apart(ours, theirs):
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def _started(python, workload, method, tiny):
    options = ["--workload", workload.name, "--examples", str(workload.n), "--method", method]
    options += ["--tiny"] if tiny else []
    return Process(python, ["benchmarks.peers.torch_gradients", *options], MEMORY_LIMIT)


def attempt(results, others, name, action):
    """A failure takes a peer out of the run and leaves its reason."""
    try:
        action(others[name], results[name])
    except Failed as failure:
        results[name].failed = str(failure)
        others.pop(name)


def compare(process, result, path):
    """Wait until it is ready, and for its first result, which is compared with that of a file."""
    process.ask(LIMIT)
    result.apart = process.ask(LIMIT, do="prepare", reference=path)["error"] or 0.0


def run(process, result):
    """Note the processor time of one call more."""
    result.seconds += process.ask(LIMIT, do="run", at_least=LIMIT, calls=1)["cpu"]


def remember(process, result):
    """Note the peak of the memory."""
    result.peak = process.ask(LIMIT, do="memory")["bytes"]


def table():
    made = Table(title="The gradient kernel, cross-entropy: CPU seconds, and MiB at the peak")
    for column in ("network", "examples", "by", "CPU", "ratio", "MiB", "apart"):
        made.add_column(column, justify="left" if column in ("network", "by") else "right")
    return made


def add_rows(made, workload, n, results):
    """One row for each way; ratios are theirs over ours."""
    ours = statistics.median(results[OURS].seconds)
    for name, result in results.items():
        heading = (workload.title, str(n)) if name == OURS else ("", "")
        if result.failed:
            made.add_row(*heading, name, result.failed)
            continue
        seconds = statistics.median(result.seconds)
        peak = "-" if result.peak is None else f"{result.peak / 2**20:.0f}"
        numbers = f"{seconds:.3f}", f"{seconds / ours:.1f}", peak, f"{result.apart:.0e}"
        made.add_row(*heading, name, *numbers)
    made.add_section()


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gradient_kernels", description=__doc__
    )
    parser.add_argument("--workloads", default=",".join(NAMES))
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="smoke-test sizes")
    parser.add_argument("--torch-python", help="interpreter with torch, captum and BackPACK")
    arguments = parser.parse_args(argv)
    made, ratios = table(), {}
    for name in arguments.workloads.split(","):
        workload = workloads.get(name, arguments.tiny)
        n = workload.n if arguments.tiny else arguments.examples
        python = arguments.torch_python
        results, _ = measure(workload, n, arguments.rounds, python, arguments.tiny)
        add_rows(made, workload, n, results)
        ours, theirs = (statistics.median(results[one].seconds) for one in (OURS, STACKED))
        ratios[name] = theirs / ours
    Console(width=120).print(made)
    return ratios


if __name__ == "__main__":
    main()
