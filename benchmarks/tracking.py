"""What `ntkdiag.track` costs beside the kernels of the same checkpoints.

    python -m benchmarks.tracking 128

Both run in one process on the same parameters, first with what has to be compiled, then without.
"""

import sys
import time
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jaxtyping import PyTree

import ntkdiag
from benchmarks.monitor_cost.models import ResNet

CHECKPOINTS = 20
CLASSES = 10


def checkpoints(variables: PyTree) -> Mapping[int, PyTree]:
    """Variables that differ by two per cent in every entry."""

    def moved(step: int) -> PyTree:
        rng = np.random.default_rng(step)
        return jax.tree.map(
            lambda leaf: leaf * (1 + 0.02 * rng.normal(size=leaf.shape)).astype(np.float32),
            variables,
        )

    return {step: moved(step) for step in range(CHECKPOINTS)}


def seconds(run: Callable[[], object]) -> float:
    """Time on the clock."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def main() -> None:
    """Print both times and their ratio."""
    n_examples = int(sys.argv[1])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_examples, 32, 32, 3)).astype(np.float32)
    y = rng.integers(0, CLASSES, n_examples)
    model = ResNet((1, 1, 1), width=16, classes=CLASSES)
    variables = model.init(jax.random.key(0), x[:2], train=False)
    run = checkpoints(variables)
    f, _ = ntkdiag.functionalize(model, variables)

    def kernels() -> None:
        for of_step in run.values():
            np.asarray(ntkdiag.ntk(f, of_step["params"], x, reduction="full").array)

    def tracked() -> None:
        ntkdiag.track(run, model=model, train=(x, y), reduction="full", loss="cross_entropy")

    for what in ("with compiling", "compiled"):
        of_kernels = seconds(kernels)
        of_run = seconds(tracked)
        ratio = of_run / of_kernels
        print(f"{what}: kernels {of_kernels:.1f} s, track {of_run:.1f} s, {ratio:.2f} times")


if __name__ == "__main__":
    main()
