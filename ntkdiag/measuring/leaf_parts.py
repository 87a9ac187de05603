"""The part of every leaf of the parameters in the kernel: its own kernel, or its trace alone.

tr Theta_l is the sum over examples n of tr_c (J_l J_l^T)_nn: of the kernel only the blocks of
examples with themselves are needed. So each example has a kernel of its own, a few examples at a
time. Kernels of all pairs cost a multiple; they are computed where they are wanted, where examples
are one joint batch, and where the Jacobian of one example is too large for a single block.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Container, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.engine import Memory, ntk
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import ReductionLike, passes_of
from ntkdiag.models.paths import leaves_by_path

_LAYER = re.compile(r"\[\d+\]$")  # the number of a layer at the end of a path: "kernel[3]"

# Examples that are differentiated together, and bytes that their Jacobians may take.
MOST_TOGETHER = 8
BYTES_TOGETHER = 256 * 2**20

# Name of a leaf, or of a layer in it, -> trace of its kernel.
Traces: TypeAlias = Mapping[str, Float[Array | np.ndarray, ""] | np.number]


def leaf_kernels(
    f: Callable[..., PyTree],
    params: PyTree,
    x: PyTree,
    memory: Memory | None = None,
    reduction: ReductionLike = "trace",
) -> dict[str, Float[np.ndarray, "n n"]]:
    """Compute sum_c Theta_cc of every leaf; they add up to that of the model, sum_l J_l J_l^T."""
    kernel = ntk(f, params, x, reduction=reduction, per_leaf=True, memory=memory)  # [n n]
    # A leaf that the outputs do not depend on has no entry in `kernel.leaves`: zeros stay.
    kernels = {path: np.zeros(kernel.shape) for path in leaves_by_path(params)}
    for name, part in (kernel.leaves or {}).items():
        path = leaf_of(name, kernels)
        kernels[path] = kernels[path] + np.asarray(part.array, np.float64)
    return kernels


def leaf_of(name: str, paths: Container[str]) -> str:
    """The path of the leaf that a kernel is of, or that its layer is stacked in."""
    return name if name in paths else _LAYER.sub("", name)


@dataclasses.dataclass(frozen=True, eq=False)
class LeafTraces:
    """`traces(params, x, **kwargs)` of one function; compiled once."""

    f: Callable[..., PyTree]  # the function
    n_outputs: int  # c, of one example
    memory: Memory | None  # memory budget, where kernels of all pairs are computed
    reduction: ReductionLike = "trace"  # "trace", or random directions, which estimate it

    def __call__(self, params: PyTree, x: PyTree, **kwargs: PyTree) -> Traces:
        """The trace of the kernel of every leaf that the outputs depend on."""
        if getattr(self.f, "joint", False) or self._examples_together(params) == 0:
            kernel = self._per_leaf(params, x, memory=self.memory, **kwargs)
            return _traces(kernel)
        return self._of_each_example(params, x, kwargs)

    @functools.cached_property
    def _of_each_example(self) -> Callable[..., Traces]:
        def of_each(params: PyTree, x: PyTree, kwargs: Mapping[str, PyTree]) -> Traces:
            def of_one(example: PyTree) -> Traces:
                alone = jax.tree.map(lambda leaf: leaf[None], example)
                return _traces(self._per_leaf(params, alone, check=False, **kwargs))

            n = len(jax.tree.leaves(x)[0])
            together = self._examples_together(params)
            while n % together > 0:  # a rest would be another program
                together -= 1
            of_examples = jax.lax.map(of_one, x, batch_size=together)
            return jax.tree.map(lambda of_leaf: of_leaf.sum(), of_examples)

        return jax.jit(of_each, compiler_options=compiler_options(reduces=True))

    def _examples_together(self, params: PyTree) -> int:
        """How many Jacobians [k P] there is room for; 0 if not for one."""
        n_params = sum(leaf.size for leaf in jax.tree.leaves(params))
        n_passes = passes_of(self.reduction, self.n_outputs)
        return min(MOST_TOGETHER, BYTES_TOGETHER // (4 * n_passes * n_params))

    def _per_leaf(self, params: PyTree, x: PyTree, **kwargs: Any) -> Kernel:
        return ntk(self.f, params, x, reduction=self.reduction, per_leaf=True, **kwargs)


def shares_of_leaves(traces: Traces, params: PyTree) -> list[float]:
    """tr Theta_l / tr Theta, in leaf order; 0 for a leaf that the outputs do not depend on."""
    of_leaves = dict.fromkeys(leaves_by_path(params), 0.0)
    for name, trace in traces.items():
        of_leaves[leaf_of(name, of_leaves)] += float(trace)
    total = math.fsum(of_leaves.values())
    return [trace / total if total > 0 else math.nan for trace in of_leaves.values()]


def _traces(kernel: Kernel) -> Traces:
    """The trace of each kernel [n n]."""
    return {name: part.array.trace() for name, part in (kernel.leaves or {}).items()}
