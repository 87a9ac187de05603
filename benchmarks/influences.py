"""Influences of training examples: `python -m benchmarks.influences --torch-python PYTHON`.

Of one small network and the same examples, in turns: `ntkdiag.influence`, and influence functions
in PyTorch (`benchmarks.peers.torch_influence`). They are not the same numbers: ours are exact for
the linearized model that is fitted under a ridge, those are of first order at these parameters.
"""

import argparse
import statistics

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import ntkdiag
from benchmarks.gradient_inputs import SMALL, labels_of
from benchmarks.gradient_kernels import MEMORY_LIMIT, Measured, attempt, compare, in_turn
from benchmarks.process import Process

OURS, CAPTUM = "ntkdiag", "torch, captum"


def calls_here():
    """Ours, by name."""
    f, params = SMALL.in_jax(), jax.tree.map(jnp.asarray, SMALL.params())
    examples = jnp.asarray(SMALL.inputs()), jnp.asarray(labels_of(SMALL))
    arguments = (f, params, examples, examples)
    settings = {"loss": "cross_entropy", "ridge": 1.0}
    return {OURS: lambda: ntkdiag.influence(*arguments, **settings)}


def measure(rounds, torch_python=None):
    """What was measured of each way, by name."""
    calls = calls_here()
    results = {name: Measured() for name in calls}
    others = {}
    if torch_python:
        results[CAPTUM] = Measured()
        others[CAPTUM] = Process(torch_python, ["benchmarks.peers.torch_influence"], MEMORY_LIMIT)
    started = list(others.values())
    try:
        for call in calls.values():
            call()  # compiled
        for name in list(others):
            attempt(results, others, name, lambda p, r: compare(p, r, None))
        in_turn(calls, others, results, rounds)
    finally:
        for process in started:
            process.close()
    return results


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.influences", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch-python", help="interpreter with torch and captum")
    arguments = parser.parse_args(argv)
    made = Table(
        title=f"Influences, {SMALL.title}, {SMALL.n} examples: CPU seconds, MiB at the peak"
    )
    for column in ("by", "CPU", "MiB"):
        made.add_column(column, justify="left" if column == "by" else "right")
    results = measure(arguments.rounds, arguments.torch_python)
    for name, result in results.items():
        if result.failed:
            made.add_row(name, result.failed)
            continue
        peak = "-" if result.peak is None else f"{result.peak / 2**20:.0f}"
        made.add_row(name, f"{statistics.median(result.seconds):.3g}", peak)
    Console(width=120).print(made)
    return results


if __name__ == "__main__":
    main()
