"""NTK-vector products, K e_(m,p) = J J^T e_(m,p): a VJP and a JVP of the batch for each column."""

from benchmarks.peers.jax_arrays import load
from benchmarks.peers.job import Job
from benchmarks.workloads import Workload


def build(workload: Workload, reduction: str) -> Job:
    import jax
    import jax.numpy as jnp

    f, params, x = load(workload)
    x = x[: workload.chunk]

    @jax.jit
    def kernel(params, x):
        def columns(x_m):
            y, pull = jax.vjp(lambda p: f(p, x_m[None])[0], params)

            def column(cotangent):
                return jax.jvp(lambda p: f(p, x), (params,), pull(cotangent))[1]

            block = jax.vmap(column, out_axes=-1)(jnp.eye(y.size, dtype=y.dtype))  # [n o p]
            return block if reduction == "full" else jnp.trace(block, axis1=1, axis2=2)

        # [m n o p] -> [n o m p], or [m n] -> [n m]
        of_columns = jax.lax.map(columns, x)
        return jnp.moveaxis(of_columns, 0, 2 if reduction == "full" else 1)

    return Job(lambda: jax.block_until_ready(kernel(params, x)), scale=workload.pairs)
