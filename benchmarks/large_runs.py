"""What large runs cost: many checkpoints, many leaves, many layers, many runs.

    python -m benchmarks.large_runs                   # all of them, each in a process of its own
    python -m benchmarks.large_runs track-leaves      # one of them
    python -m benchmarks.large_runs --small           # a tenth of each, as a smoke test

Of each: seconds of processor time at half of the size and at all of it, their ratio, seconds that
XLA compiled at all of it, memory beyond what the process had before, and bytes on disk. A ratio of
2 is linear, 4 is quadratic: pairs of checkpoints are, as each is linearized for every other.
"""

import argparse
import dataclasses
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import ntkdiag
from ntkdiag.monitor import JsonLines

EXAMPLES = 16
CLASSES = 4
WIDTH = 8
Params = Mapping[str, Any]


def network(params: Params, x: jax.Array) -> jax.Array:
    """A residual network whose layers are leaves "000", "001", ..., or one scanned stack."""
    hidden = x @ params["first"]
    if "layers" in params:
        hidden, _ = jax.lax.scan(_layer, hidden, params["layers"])
    else:
        for name in sorted(params["blocks"]):
            hidden, _ = _layer(hidden, params["blocks"][name])
    return hidden @ params["last"]


def _layer(hidden: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
    return hidden + jnp.tanh(hidden @ weight) / 10, None


def parameters(n_layers: int, *, stacked: bool) -> Params:
    """Parameters of `network`: one array for all layers, or one for each."""
    rng = np.random.default_rng(0)
    shape = (WIDTH, WIDTH)
    layers = (rng.normal(size=(n_layers, *shape)) / np.sqrt(WIDTH)).astype(np.float32)
    inside = {"layers": layers}
    if not stacked:
        inside = {"blocks": {f"{k:04d}": layer for k, layer in enumerate(layers)}}
    return {
        "first": rng.normal(size=shape).astype(np.float32),
        **inside,
        "last": rng.normal(size=(WIDTH, CLASSES)).astype(np.float32),
    }


def probe() -> tuple[np.ndarray, np.ndarray]:
    """Examples and classes."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(EXAMPLES, WIDTH)).astype(np.float32)
    return x, np.arange(EXAMPLES) % CLASSES


def checkpoints(count: int, params: Params) -> dict[int, Params]:
    """Parameters that move by one per cent from one checkpoint to the next."""

    def moved(step: int) -> Params:
        rng = np.random.default_rng(step)

        def moved_leaf(leaf: np.ndarray) -> np.ndarray:
            change = 0.01 * step * rng.normal(size=leaf.shape)
            return (leaf * (1 + change)).astype(leaf.dtype)

        return jax.tree.map(moved_leaf, params)

    return {10 * step: moved(step) for step in range(count)}


def track(run: Mapping[int, Params], out: pathlib.Path) -> None:
    """Follow a run and store it."""
    ntkdiag.track(run, model=network, train=probe(), loss="mse", out=out)


def tracked_checkpoints(size: int, out: pathlib.Path) -> Callable[[], object]:
    """`track` of so many checkpoints."""
    run = checkpoints(size, parameters(3, stacked=False))
    return lambda: track(run, out)


def resumed_checkpoints(size: int, out: pathlib.Path) -> Callable[[], object]:
    """The same call once more, which finds all of them."""
    run = checkpoints(size, parameters(3, stacked=False))
    track(run, out)
    return lambda: track(run, out)


def page_of_checkpoints(size: int, out: pathlib.Path) -> Callable[[], object]:
    """The page of that run."""
    track(checkpoints(size, parameters(3, stacked=False)), out)
    return lambda: ntkdiag.open_run(out).save(out.with_suffix(".html"))


def tracked_leaves(size: int, out: pathlib.Path) -> Callable[[], object]:
    """`track` of five checkpoints with so many leaves, after one of another run that compiles."""
    run = checkpoints(5, parameters(size, stacked=False))
    return lambda: track(run, out)


def tracked_layers(size: int, out: pathlib.Path) -> Callable[[], object]:
    """`track` of five checkpoints with so many layers in one scanned stack."""
    run = checkpoints(5, parameters(size, stacked=True))
    return lambda: track(run, out)


def compared_leaves(size: int, out: pathlib.Path) -> Callable[[], object]:
    """`compare` of two checkpoints with so many leaves."""
    a, b = checkpoints(2, parameters(size, stacked=False)).values()
    return lambda: ntkdiag.compare(a, b, model=network, train=probe(), loss="mse")


def compared_layers(size: int, out: pathlib.Path) -> Callable[[], object]:
    """`compare` of two checkpoints with so many layers in one scanned stack."""
    a, b = checkpoints(2, parameters(size, stacked=True)).values()
    return lambda: ntkdiag.compare(a, b, model=network, train=probe(), loss="mse")


def compared_of_root(size: int, out: pathlib.Path) -> Callable[[], object]:
    """`compare` of the first and the last of so many Orbax checkpoints."""
    from orbax.checkpoint import v1

    root = out / "checkpoints"
    run = checkpoints(size, parameters(3, stacked=False))
    for step, params in run.items():
        v1.save(root / str(step), {"params": params})
    sides = f"{root}@{min(run)}", f"{root}@{max(run)}"
    return lambda: ntkdiag.compare(*sides, model=network, train=probe(), loss="mse")


def page_of_rows(size: int, out: pathlib.Path) -> Callable[[], object]:
    """The page of so many measurements of 30 numbers each."""
    names = ["quantity0", "quantity1", "quantity2", "trace", "loss", "margin", "drift"]
    names += ["step_error", "distance_centred", "alignment_above"]
    lines = JsonLines(out / "watch.jsonl")
    lines.start({"name": "ntk"})
    with lines.path.open("a") as file:
        for step in range(size):
            numbers = {}
            for name in names:
                for ending in ("", "_lower", "_upper"):
                    numbers[f"{name}{ending}"] = 1.0 + 0.123456 * (step % 97)
            file.write(json.dumps({"step": step, "status": 1, **numbers}) + "\n")
    return lambda: ntkdiag.open_run(out).save(out / "run.html")


@dataclasses.dataclass(frozen=True)
class Case:
    """One benchmark.

    Attributes:
        what: What is done, in words; {} is the size.
        size: How many of it.
        prepare: Makes what is timed, of a size and a folder.
    """

    what: str
    size: int
    prepare: Callable[[int, pathlib.Path], Callable[[], object]]


CASES = {
    "track": Case("track of {} checkpoints", 200, tracked_checkpoints),
    "resume": Case("the same, all of them stored", 200, resumed_checkpoints),
    "page": Case("the page of {} checkpoints", 200, page_of_checkpoints),
    "track-leaves": Case("track of 5 checkpoints with {} leaves", 1000, tracked_leaves),
    "track-layers": Case("track of 5 checkpoints with {} scanned layers", 300, tracked_layers),
    "compare-root": Case("compare of two of {} checkpoints", 200, compared_of_root),
    "compare-leaves": Case("compare with {} leaves", 1000, compared_leaves),
    "compare-layers": Case("compare with {} scanned layers", 300, compared_layers),
    "rows": Case("the page of {} measurements", 100_000, page_of_rows),
}


def measure(name: str, size: int) -> dict[str, float]:
    """Seconds, bytes of memory and bytes on disk of one case, in this process."""
    compiled: list[float] = []

    def note(event: str, seconds: float, **kwargs: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(note)
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        out.mkdir()
        timed = CASES[name].prepare(size, out)
        compiled.clear()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begun = time.process_time()
        timed()
        seconds = time.process_time() - begun
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
        files = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
        disk = sum(path.stat().st_size for path in files)
    return {
        "seconds": seconds,
        "compiling": sum(compiled),
        "memory": 1024.0 * kilobytes,
        "disk": float(disk),
    }


def in_a_process(name: str, size: int) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.large_runs", name, "--size", str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure what is asked for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *CASES])
    parser.add_argument("--size", type=int, help="one size, in this process")
    parser.add_argument("--small", action="store_true", help="a tenth of each size")
    arguments = parser.parse_args()
    if arguments.size is not None:
        print(json.dumps(measure(arguments.names[0], arguments.size)))
        return
    table = Table("", "half", "all", "ratio", "compiling", "memory", "disk")
    for name in arguments.names or CASES:
        case = CASES[name]
        size = case.size // 10 if arguments.small else case.size
        half, full = in_a_process(name, size // 2), in_a_process(name, size)
        table.add_row(
            case.what.format(f"{size:,}"),
            f"{half['seconds']:.1f} s",
            f"{full['seconds']:.1f} s",
            f"{full['seconds'] / half['seconds']:.1f}",
            f"{full['compiling']:.1f} s",
            f"{full['memory'] / 1e6:.0f} MB",
            f"{full['disk'] / 1e6:.1f} MB",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
