"""neural-tangents 0.6.5, every implementation, in an environment of its own (jax 0.4.25)."""

import sys
import types
from typing import Any

from benchmarks.peers.jax_arrays import load
from benchmarks.peers.job import Job
from benchmarks.workloads import Workload

SUBSET = 2  # tiles to a side that nt.batch computes of a kernel too large to wait for


def build(workload: Workload, reduction: str, implementation: str) -> Job:
    import jax

    nt = _module()
    f, params, x = load(workload)
    axes, divided = ((-1,), workload.classes) if reduction == "trace" else ((), 1)
    kernel_fn = nt.empirical_ntk_fn(
        lambda params, x: f(params, x),
        trace_axes=axes,
        vmap_axes=0,
        implementation=nt.NtkImplementation[implementation],
    )
    tile = workload.tile if implementation == "STRUCTURED_DERIVATIVES" else workload.chunk
    if tile is None:
        kernel = jax.jit(lambda params, x: kernel_fn(x, None, params))
        return Job(lambda: jax.block_until_ready(kernel(params, x)), layout="nmop", divided=divided)
    batched = nt.batch(kernel_fn, batch_size=tile, device_count=0)
    part = x[: SUBSET * tile]
    scale = (workload.n / part.shape[0]) ** 2
    return Job(
        lambda: jax.block_until_ready(batched(part, None, params)),
        layout="nmop",
        divided=divided,
        scale=scale,
    )


def _module() -> Any:
    """neural_tangents without its `experimental` part, which wants TensorFlow."""
    sys.modules.setdefault(
        "neural_tangents.experimental", types.ModuleType("neural_tangents.experimental")
    )
    import neural_tangents

    return neural_tangents
