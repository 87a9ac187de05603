"""`python -m benchmarks.monitor_cost`: what `ntkdiag.watch` costs.

--count: operations of ResNet-50, ViT-B/16 and GPT-2, by plan and as XLA counts them; nothing is
         allocated and nothing compiled.
--loops: steps of AdamW with donated buffers, as people train, with the defaults and a writer.
--wall:  seconds, memory and compile time of small networks, with and without.
"""

import argparse
import sys

from rich.console import Console

from benchmarks.monitor_cost import shares, usual_loops, wall_clock
from benchmarks.monitor_cost.training import LARGE, SMALL


def main(argv: list[str] | None = None) -> int:
    """Print the tables that were asked for, all by default."""
    arguments = _parser().parse_args(argv)
    console = Console(width=130)
    does_all = not (arguments.count or arguments.wall or arguments.loops)
    if arguments.count or does_all:
        console.print(shares.table(SMALL if arguments.small else LARGE))
    if arguments.loops or does_all:
        wall_clock.without_cache()
        console.print(usual_loops.table(arguments.steps))
    if arguments.wall or does_all:
        wall_clock.without_cache()
        console.print(wall_clock.table(SMALL, arguments.periods))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.monitor_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", action="store_true", help="operations")
    parser.add_argument("--loops", action="store_true", help="the clock, as people train")
    parser.add_argument("--steps", type=int, default=2000, help="of these trainings")
    parser.add_argument("--wall", action="store_true", help="the clock")
    parser.add_argument("--small", action="store_true", help="count the small networks instead")
    parser.add_argument("--periods", type=int, default=20, help="of 100 steps, on the clock")
    return parser


if __name__ == "__main__":
    sys.exit(main())
