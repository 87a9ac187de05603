"""A workload as JAX arrays."""

from typing import Any

from benchmarks.workloads import Workload


def load(workload: Workload) -> tuple[Any, Any, Any]:
    """(f, params, x), on the default device, with the backend started."""
    import jax
    import jax.numpy as jnp

    params, x = jax.tree_util.tree_map(jnp.asarray, (workload.params(), workload.inputs()))
    return workload.in_jax(), jax.block_until_ready(params), jax.block_until_ready(x)
