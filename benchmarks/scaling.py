"""Cost against the number of examples: `python -m benchmarks.scaling`.

The passes through the network are linear in N, the contraction quadratic: flops from the plan, and
measured times. Factors are what the passes produce; a kernel of N examples against one
(`x2=x[:1]`) costs the passes and next to no contraction, which tells the two apart on the clock.
"""

import argparse
import json
import math
import pathlib
import statistics
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from benchmarks import workloads
from benchmarks.peers.jax_arrays import load

SIZES = (64, 128, 256, 512, 1024, 2048)


def measure(
    name: str, reduction: str, sizes: tuple[int, ...], rounds: int
) -> list[dict[str, float]]:
    """One row for every N: flops, seconds of the whole, of the passes, and their difference."""
    import dataclasses

    import jax

    import ntkdiag

    f, params, x = load(dataclasses.replace(workloads.get(name), n=max(sizes)))

    def seconds(*examples) -> float:
        return _median(
            lambda: jax.block_until_ready(
                ntkdiag.ntk(f, params, *examples, reduction=reduction).array
            ),
            rounds,
        )

    rows = []
    for n in sizes:
        plan = ntkdiag.plan(f, params, x[:n], reduction=reduction)
        whole, passes = seconds(x[:n]), seconds(x[:n], x[:1])
        rows.append(
            {
                "n": n,
                "network_flops": plan.network_flops,
                "contraction_flops": plan.contraction_flops,
                "seconds": whole,
                "passes_seconds": passes,
                "contraction_seconds": max(whole - passes, 0.0),
            }
        )
    return rows


def slope(rows: list[dict[str, float]], column: str) -> float:
    """Exponent of n: least squares on logarithms, of the rows where the column is positive."""
    points = [(math.log(row["n"]), math.log(row[column])) for row in rows if row[column] > 0]
    if len(points) < 2:
        return float("nan")
    x, y = ([point[axis] for point in points] for axis in (0, 1))
    x_mean, y_mean = statistics.fmean(x), statistics.fmean(y)
    rise = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return rise / sum((a - x_mean) ** 2 for a in x)


def table(name: str, reduction: str, rows: list[dict[str, float]]) -> Table:
    """Rows by N, and the fitted exponents, of all rows and of the larger half."""
    columns = (
        "network_flops",
        "contraction_flops",
        "passes_seconds",
        "contraction_seconds",
        "seconds",
    )
    made = Table(title=f"{workloads.get(name).title}, {reduction}", title_justify="left")
    for heading in (
        "N",
        "network flops",
        "contraction flops",
        "passes [s]",
        "contraction [s]",
        "whole [s]",
    ):
        made.add_column(heading, justify="right")
    for row in rows:
        made.add_row(str(row["n"]), *(f"{row[column]:.3g}" for column in columns))
    made.add_section()
    made.add_row("N^", *(f"{slope(rows, column):.2f}" for column in columns))
    made.add_row(
        "N^ (upper half)", *(f"{slope(rows[len(rows) // 2 :], column):.2f}" for column in columns)
    )
    return made


def _median(call: Callable, rounds: int) -> float:
    call()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--workload", default="W1")
    parser.add_argument("--reduction", default="trace")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    arguments = parser.parse_args(argv)
    sizes = tuple(int(size) for size in arguments.sizes.split(","))
    rows = measure(arguments.workload, arguments.reduction, sizes, arguments.rounds)
    Console(width=120).print(table(arguments.workload, arguments.reduction, rows))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
