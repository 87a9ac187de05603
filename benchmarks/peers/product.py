"""Not a kernel: one float32 matrix product, for the rate of this machine in the same rounds."""

from benchmarks.peers.job import Job
from benchmarks.workloads import Workload

SIZE = 2048


def build(workload: Workload, reduction: str) -> Job:
    import jax
    import jax.numpy as jnp

    x = jnp.ones((SIZE, SIZE), jnp.float32)
    product = jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))
    return Job(
        lambda: product(x).block_until_ready(), plan=lambda: {"flops": 2 * SIZE**3}, is_kernel=False
    )
