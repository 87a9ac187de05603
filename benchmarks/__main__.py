"""`python -m benchmarks`: measure, print the table, write JSON."""

import argparse
import json
import os
import pathlib
import platform
import sys
import time

from rich.console import Console

from benchmarks import workloads
from benchmarks.peers import registry
from benchmarks.results import Result
from benchmarks.runner import Options, measure
from benchmarks.table import show, summary, table


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 unless ntkdiag itself failed."""
    arguments = _parser().parse_args(argv)
    options = Options(
        pythons={
            "jax": arguments.python,
            "nt": arguments.nt_python,
            "torch": arguments.torch_python,
        },
        rounds=arguments.rounds,
        limit=arguments.limit,
        memory_limit=round(arguments.memory_limit * 2**30),
        tiny=arguments.tiny,
    )
    errors = Console(stderr=True)
    results: list[Result] = []
    for name in arguments.workloads.split(","):
        for reduction in workloads.get(name).reductions:
            if reduction in arguments.reduction.split(","):
                with errors.status("") as status:
                    peers = arguments.peers.split(",")
                    results += measure(name, reduction, peers, options, status.update)
                if arguments.json:
                    pathlib.Path(arguments.json).write_text(
                        json.dumps(_report(results, options), indent=1)
                    )
                show(table(results[-len(peers) :], options.tiny))
    show(summary(results, options.tiny))
    return int(any(result.failed for result in results if result.peer == "ntkdiag"))


def _report(results: list[Result], options: Options) -> dict:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {
            "cores": os.cpu_count(),
            "architecture": platform.machine(),
            "system": platform.system(),
        },
        "rounds": options.rounds,
        "tiny": options.tiny,
        "results": [result.to_dict() for result in results],
    }


def _parser() -> argparse.ArgumentParser:
    names = [workload.name for workload in workloads.ALL]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--workloads", default=",".join(names), help="such as W1,W3")
    parser.add_argument("--reduction", default="trace,full")
    parser.add_argument("--peers", default=",".join(peer.name for peer in registry.PEERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds for any one step of a peer"
    )
    parser.add_argument("--memory-limit", type=float, default=14.0, help="GiB of a peer's process")
    parser.add_argument("--tiny", action="store_true", help="smoke-test sizes")
    parser.add_argument("--json", help="where to write the results")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter with ntkdiag and a current JAX"
    )
    parser.add_argument("--nt-python", help="interpreter with neural-tangents 0.6.5 and jax 0.4.25")
    parser.add_argument("--torch-python", help="interpreter with torch")
    return parser


if __name__ == "__main__":
    sys.exit(main())
