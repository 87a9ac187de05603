"""`vmap(jacrev)` and a matrix product per leaf, under one jit: what one writes without a library.

Of a large kernel one pair of chunks is measured: one Jacobian and one contraction, as in a loop
that keeps the rows'.
"""

from benchmarks.peers.jax_arrays import load
from benchmarks.peers.job import Job
from benchmarks.workloads import Workload


def build(workload: Workload, reduction: str) -> Job:
    import jax
    import jax.numpy as jnp

    f, params, x = load(workload)

    def jacobian(params, x):
        return jax.vmap(jax.jacrev(lambda p, x: f(p, x[None])[0]), (None, 0))(params, x)

    def gram(j):  # [n o ...] -> [n o m p], or [n m]
        n, o = j.shape[:2]
        if reduction == "full":
            rows = j.reshape(n * o, -1)
            return (rows @ rows.T).reshape(n, o, n, o)
        # The trace sums over outputs as it sums over parameters.
        rows = j.reshape(n, -1)
        return rows @ rows.T

    @jax.jit
    def terms(params, x):
        return jnp.stack([gram(leaf) for leaf in jax.tree_util.tree_leaves(jacobian(params, x))])

    x = x[: workload.chunk]
    # The sum stands outside: added up by the compiler of jax 0.4.25, products crash on newer
    # processors.
    return Job(lambda: jax.block_until_ready(terms(params, x).sum(0)), scale=workload.pairs)
