"""The kernel in float64, by NTK-vector products: independent of the package, no Jacobian in memory.

Runs as `python -m benchmarks.reference W1 path.npy`, with float64 switched on.
"""

import sys

import numpy as np

from benchmarks import workloads


def kernel(workload: workloads.Workload) -> np.ndarray:
    """[n o m p] of the first `reference_n` examples; tokens stay integers."""
    import jax
    import jax.numpy as jnp

    f = workload.in_jax()
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), workload.params())
    x = jnp.asarray(workload.inputs()[: workload.reference_n])
    x = x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x

    @jax.jit
    def columns(params, x, x_m):
        y, pull = jax.vjp(lambda params: f(params, x_m[None])[0], params)

        def column(cotangent):
            return jax.jvp(lambda params: f(params, x), (params,), pull(cotangent))[1]  # [n o]

        return jax.lax.map(column, jnp.eye(y.size))  # [p n o]

    return np.stack([np.asarray(columns(params, x, x_m)) for x_m in x]).transpose(2, 3, 0, 1)


if __name__ == "__main__":
    import jax

    jax.config.update("jax_enable_x64", True)
    np.save(sys.argv[2], kernel(workloads.get(sys.argv[1], tiny="--tiny" in sys.argv)))
