"""neural-tangents' calls beside the engine's own: `python -m benchmarks.neural_tangents_calls`.

Both are called in turn in one process, so that whatever else the machine does disturbs both alike,
and compared by processor time: the median over rounds of the difference, over the median of the
engine's own call.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import workloads
from benchmarks.peers.jax_arrays import load

WORKLOADS = ("W1", "W2", "W3", "W4", "W5")
AXES = {"trace": (-1,), "full": ()}


def calls(name: str, reduction: str, tiny: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The engine's own call and the translated one, with the same mean over outputs or none."""
    import jax

    import ntkdiag

    f, params, x = load(workloads.get(name, tiny))
    ours = "mean" if reduction == "trace" else reduction
    ntk_fn = ntkdiag.neural_tangents.empirical_ntk_fn(f, trace_axes=AXES[reduction], vmap_axes=0)
    return (
        lambda: jax.block_until_ready(ntkdiag.ntk(f, params, x, reduction=ours).array),
        lambda: jax.block_until_ready(ntk_fn(x, None, params)),
    )


def measure(name: str, reduction: str, seconds: float, tiny: bool) -> dict[str, float]:
    """Processor seconds of both after warm-up, and what the translated call adds."""
    both = calls(name, reduction, tiny)
    for call in both * 2:
        call()
    times: list[tuple[float, float]] = []
    end = time.monotonic() + seconds
    while len(times) < 3 or time.monotonic() < end:
        turn = len(times) % 2  # who comes second finds other caches
        pair = {k: _timed(both[k]) for k in (turn, 1 - turn)}
        times.append((pair[0], pair[1]))
    engine = statistics.median(first for first, _ in times)
    added = statistics.median(second - first for first, second in times)
    return {
        "engine": engine,
        "translated": engine + added,
        "added": added / engine,
        "rounds": len(times),
    }


def _timed(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neural_tangents_calls", description=__doc__
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--reduction", default="trace,full")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each row")
    parser.add_argument("--tiny", action="store_true", help="smoke-test sizes")
    arguments = parser.parse_args(argv)
    table = Table(
        "workload", "reduction", "engine, cpu ms", "translated, cpu ms", "added", "rounds"
    )
    for name in arguments.workloads.split(","):
        for reduction in arguments.reduction.split(","):
            row = measure(name, reduction, arguments.seconds, arguments.tiny)
            milliseconds = [f"{1e3 * row[key]:.2f}" for key in ("engine", "translated")]
            table.add_row(
                name, reduction, *milliseconds, f"{row['added']:+.2%}", f"{row['rounds']:.0f}"
            )
    Console().print(table)
    return 0


if __name__ == "__main__":
    main()
