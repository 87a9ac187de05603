"""The networks and batches that are measured: W1 to W9, and tiny versions of them for tests."""

import dataclasses
import importlib
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Workload:
    """A network with its sizes, and a batch.

    Attributes:
        name: "W1" to "W9".
        title: In words.
        network: File in `benchmarks.networks`.
        sizes: Handed to its functions.
        n: Examples.
        classes: Outputs of one example.
        reductions: Those that are measured.
        memory: `memory=` of ntkdiag; None is its default.
        chunk: Examples at a time for peers that form Jacobians; None where they manage the whole
            batch at once.
        tile: The same for neural-tangents' structured derivatives, which need less memory.
    """

    name: str
    title: str
    network: str
    sizes: dict[str, Any]
    n: int
    classes: int = 10
    reductions: tuple[str, ...] = ("trace", "full")
    memory: str | None = None
    chunk: int | None = None
    tile: int | None = None

    @property
    def reference_n(self) -> int:
        """How many examples the float64 reference covers: all, or the first of a large batch."""
        return min(self.n, 64)

    @property
    def pairs(self) -> float:
        """Pairs of chunks in one triangle: what a loop over chunks computes, written with care."""
        chunks = self.n // self.chunk if self.chunk else 1
        return chunks * (chunks + 1) / 2

    @property
    def module(self) -> Any:
        return importlib.import_module(f"benchmarks.networks.{self.network}")

    def params(self) -> Any:
        """The parameters, numpy float32; the same in every process."""
        return self.module.parameters(np.random.default_rng(0), **self.sizes)

    def inputs(self) -> np.ndarray:
        """The batch, numpy."""
        return self.module.inputs(np.random.default_rng(1), self.n, **self.sizes)

    def in_jax(self) -> Any:
        """f(params, x) in JAX, example axis first."""
        return self.module.in_jax(**self.sizes)


def get(name: str, tiny: bool = False) -> Workload:
    """A workload by name."""
    workload = {w.name: w for w in ALL}[name]
    return dataclasses.replace(workload, **_TINY[name]) if tiny else workload


def _mlp(*widths: int) -> dict[str, Any]:
    return {"widths": widths}


_TRANSFORMER = {
    "width": 128,
    "layers": 4,
    "heads": 4,
    "tokens": 64,
    "vocabulary": 1000,
    "classes": 10,
}
_LSTM = {"features": 64, "units": 64, "steps": 32, "classes": 10}
_RESNET = {"side": 32, "widths": (16, 32, 64), "classes": 10}
_WIDE = _mlp(784, 1024, 1024, 1024, 10)

ALL = (
    Workload("W1", "MLP 784-1024x3-10", "mlp", _WIDE, 64),
    Workload("W2", "MLP 784-1024x3-100", "mlp", _mlp(784, 1024, 1024, 1024, 100), 32, 100, chunk=2),
    Workload("W3", "tutorial CNN", "cnn", {"side": 32, "channels": 32, "classes": 10}, 20),
    Workload("W4", "residual CNN 16-32-64", "resnet", _RESNET, 16),
    Workload(
        "W5", "transformer d=128, 4 layers", "transformer", {**_TRANSFORMER, "scan": False}, 16
    ),
    Workload(
        "W6", "transformer, scan + checkpoint", "transformer", {**_TRANSFORMER, "scan": True}, 16
    ),
    Workload("W7", "LSTM 64 units, 32 steps", "lstm", _LSTM, 16),
    Workload(
        "W8", "residual CNN, N=1000, 2 GB", "resnet", _RESNET, 1000, 10, ("trace",), "2GB", 50, 50
    ),
    Workload(
        "W9", "MLP 784-1024x3-10, N=2000, 4 GB", "mlp", _WIDE, 2000, 10, ("full",), "4GB", 10, 200
    ),
)

_TINY_TRANSFORMER = {
    "width": 16,
    "layers": 2,
    "heads": 2,
    "tokens": 8,
    "vocabulary": 20,
    "classes": 3,
}
_TINY = {
    "W1": {"sizes": _mlp(6, 16, 16, 3), "n": 4, "classes": 3},
    "W2": {"sizes": _mlp(6, 16, 16, 7), "n": 4, "classes": 7},
    "W3": {"sizes": {"side": 9, "channels": 4, "classes": 3}, "n": 3, "classes": 3},
    "W4": {"sizes": {"side": 8, "widths": (4, 8), "classes": 3}, "n": 3, "classes": 3},
    "W5": {"sizes": {**_TINY_TRANSFORMER, "scan": False}, "n": 3, "classes": 3},
    "W6": {"sizes": {**_TINY_TRANSFORMER, "scan": True}, "n": 3, "classes": 3},
    "W7": {"sizes": {"features": 4, "units": 5, "steps": 6, "classes": 3}, "n": 3, "classes": 3},
    "W8": {
        "sizes": {"side": 8, "widths": (4, 8), "classes": 3},
        "n": 8,
        "classes": 3,
        "chunk": 2,
        "tile": 4,
    },
    "W9": {"sizes": _mlp(6, 16, 16, 3), "n": 8, "classes": 3, "chunk": 2, "tile": 4},
}
