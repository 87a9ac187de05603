"""`vmap(jacrev)` and an einsum per leaf, under one jit: what one writes without a library.

Of a large kernel one pair of chunks is measured: one Jacobian and one contraction, as in a loop that keeps the rows'.
"""

from benchmarks.peers.jax_arrays import load
from benchmarks.peers.job import Job
from benchmarks.workloads import Workload


def build(workload: Workload, outputs: str) -> Job:
    import jax
    import jax.numpy as jnp

    f, params, x = load(workload)
    subscripts = {"full": "nof,mpf->nomp", "trace": "nof,mof->nm"}[outputs]

    def jacobian(params, x):
        return jax.vmap(jax.jacrev(lambda p, x: f(p, x[None])[0]), (None, 0))(params, x)

    def contract(j1, j2):
        return jnp.einsum(subscripts, *(j.reshape(*j.shape[:2], -1) for j in (j1, j2)))

    @jax.jit
    def kernel(params, x):
        leaves = jax.tree_util.tree_leaves(jacobian(params, x))
        return sum(contract(leaf, leaf) for leaf in leaves)

    x = x[: workload.chunk]
    return Job(lambda: jax.block_until_ready(kernel(params, x)), scale=workload.pairs)
