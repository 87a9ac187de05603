"""One peer on one workload in a process of its own: JSON lines in, JSON lines out.

`{"do": "prepare", "reference": path}` -> time to first result and error;
`{"do": "run"}` -> seconds of a few calls;
`{"do": "memory"}` -> peak bytes above what was resident before;
`{"do": "plan"}` -> what the peer predicts.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import memory, workloads
from benchmarks.peers import registry
from benchmarks.peers.job import Job


class Worker:
    """Answers requests about one job."""

    def __init__(self, job: Job, reduction: str) -> None:
        self.job = job
        self.reduction = reduction

    def prepare(self, reference: str | None) -> dict[str, Any]:
        """Trace, compile and run once; compare with float64 where there is a reference."""
        start = time.perf_counter()
        kernel = self.job.compute()
        seconds = time.perf_counter() - start
        error = None
        if reference is not None:
            error = self._error(kernel, np.load(reference))
        return {"seconds": seconds, "error": error, "scale": self.job.scale}

    def _error(self, kernel: Any, expected: np.ndarray) -> float:
        """Largest difference over the largest entry, of the examples that both cover."""
        n = min(len(kernel), len(expected))
        expected = expected[:n, :, :n]  # [n o m p]
        if self.reduction == "trace":
            expected = np.einsum("nomo->nm", expected)
        difference = np.abs(self.job.canonical(kernel, n) - expected).max()
        return float(difference / np.abs(expected).max())

    def run(self, at_least: float = 0.3, calls: int = 25) -> dict[str, Any]:
        """Timed calls for at least that many seconds, or that many calls."""
        times: list[tuple[float, float]] = []
        while len(times) < calls and sum(seconds for seconds, _ in times) < at_least:
            times.append(self._timed())
        return {"seconds": [seconds for seconds, _ in times], "cpu": [cpu for _, cpu in times]}

    def memory(self) -> dict[str, Any]:
        """Up to three calls more, watched and timed."""
        peaks: list[int | None] = []
        times: list[tuple[float, float]] = []
        while not times or (len(times) < 3 and sum(seconds for seconds, _ in times) < 3.0):
            peaks.append(memory.peak(lambda: times.append(self._timed())))
        known = [peak for peak in peaks if peak is not None]
        return {
            "bytes": statistics.median_low(known) if known else None,
            "seconds": [seconds for seconds, _ in times],
            "cpu": [cpu for _, cpu in times],
        }

    def _timed(self) -> tuple[float, float]:
        """One call: seconds by the clock, and of all threads. The kernel is given up on return."""
        start, cpu = time.perf_counter(), time.process_time()
        kernel = self.job.compute()
        taken = time.perf_counter() - start, time.process_time() - cpu
        del kernel
        return taken

    def plan(self) -> dict[str, Any]:
        """What the peer says it will cost."""
        return self.job.plan() if self.job.plan else {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--reduction", required=True)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()

    def make() -> Worker:
        workload = workloads.get(arguments.workload, arguments.tiny)
        job = registry.get(arguments.peer).build(workload, arguments.reduction)
        return Worker(job, arguments.reduction)

    serve(make)


def serve(make: Callable[[], Worker]) -> None:
    """Make a worker, say that it is ready, and answer until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints does not belong among the answers
    worker = make()
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
