"""Workers of one workload take turns: whatever else the machine does disturbs all of them alike.

1. Every worker compiles and answers its first kernel, which is compared with float64.
2. Every worker has its peak memory watched.
3. In each round every worker is timed for a few calls, until the slow ones have used their time.
"""

import dataclasses
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from benchmarks.peers import registry
from benchmarks.process import ROOT, Failed, Process
from benchmarks.results import Result

SLOW = 5.0  # seconds; a call that takes longer is not repeated only to be timed


@dataclasses.dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
        pythons: Interpreter of each environment: "jax", "nt", "torch"; one that is absent is
            reported, not run.
        rounds: Turns of every worker.
        limit: Seconds for any one answer.
        total: Seconds of rounds after which a slow worker takes no further turn.
        memory_limit: Resident bytes of a worker.
        tiny: Smoke-test sizes.
    """

    pythons: dict[str, str | None]
    rounds: int = 7
    limit: float = 300.0
    total: float = 10.0
    memory_limit: int = 14 * 2**30
    tiny: bool = False


def measure(
    name: str, reduction: str, peers: list[str], options: Options, say: Callable[[str], None]
) -> list[Result]:
    """Every peer on one workload; one that fails is a result with a reason."""
    results = [Result(name, reduction, peer) for peer in peers]
    running: dict[str, Process] = {}
    try:
        reference = _reference(name, options, say)
        for result in results:
            say(f"{name} {reduction}: {result.peer} compiles")
            _start(result, running, reference, options)
        for result in results:
            say(f"{name} {reduction}: memory of {result.peer}")
            _attempt(result, running, options, _remember)
        for turn in range(options.rounds):
            say(f"{name} {reduction}: round {turn + 1} of {options.rounds}")
            for result in results:
                if sum(result.seconds) < options.total * result.scale:
                    _attempt(result, running, options, _run)
    finally:
        for process in running.values():
            process.close()
    return results


def _start(result: Result, running: dict[str, Process], reference: str, options: Options) -> None:
    """Start a worker and have it compute its kernel for the first time."""
    python = options.pythons.get(registry.get(result.peer).environment)
    if python is None or not os.path.exists(python):
        result.failed = "not installed"
        return
    arguments = ["benchmarks.worker", "--peer", result.peer]
    arguments += ["--workload", result.workload, "--reduction", result.reduction]
    if options.tiny:
        arguments.append("--tiny")
    running[result.peer] = Process(python, arguments, options.memory_limit)

    def prepare(result: Result, process: Process, limit: float) -> None:
        process.ask(limit)
        answer = process.ask(limit, do="prepare", reference=reference)
        result.first = answer["seconds"]
        result.error = answer["error"]
        result.scale = answer["scale"]

    _attempt(result, running, options, prepare)


def _attempt(
    result: Result, running: dict[str, Process], options: Options, action: Callable
) -> None:
    """A failure takes the worker out of the run and leaves its reason."""
    process = running.get(result.peer)
    if process is None:
        return
    try:
        action(result, process, options.limit)
    except Failed as failure:
        result.failed = str(failure)
        running.pop(result.peer).close()


def _run(result: Result, process: Process, limit: float) -> None:
    """Note the times of a few calls."""
    result.add(process.ask(limit, do="run"))


def _remember(result: Result, process: Process, limit: float) -> None:
    """Note the peak memory, and what the peer had said it would be."""
    answer = process.ask(limit, do="memory")
    result.peak_bytes = answer["bytes"]
    result.plan = process.ask(limit, do="plan")
    if sum(answer["seconds"]) > SLOW:
        result.add(answer)  # to watch memory takes no time that matters here


def _reference(name: str, options: Options, say: Callable[[str], None]) -> str:
    """Path of the float64 kernel, computed once per version of the networks."""
    sources = sorted(pathlib.Path(ROOT, "benchmarks").glob("networks/*.py"))
    sources.append(pathlib.Path(ROOT, "benchmarks", "workloads.py"))
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = pathlib.Path(tempfile.gettempdir(), f"ntkdiag-benchmarks-{key}")
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}{'-tiny' if options.tiny else ''}.npy"
    if not path.exists():
        say(f"{name}: float64 reference")
        start = time.monotonic()
        python = options.pythons["jax"] or sys.executable
        command = [python, "-m", "benchmarks.reference", name, str(path)]
        if options.tiny:
            command.append("--tiny")
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": ROOT})
        say(f"{name}: float64 reference took {time.monotonic() - start:.0f} s")
    return str(path)
