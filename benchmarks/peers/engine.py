"""ntkdiag, called as a user calls it: eagerly, with its default checks."""

from typing import Any

from benchmarks.peers.jax_arrays import load
from benchmarks.peers.job import Job
from benchmarks.workloads import Workload


def build(workload: Workload, reduction: str) -> Job:
    import jax

    import ntkdiag

    f, params, x = load(workload)
    options = {"reduction": reduction, "memory": workload.memory}

    def compute() -> Any:
        return jax.block_until_ready(ntkdiag.ntk(f, params, x, **options).array)

    def plan() -> dict[str, Any]:
        made = ntkdiag.plan(f, params, x, **options)
        return {
            "flops": int(made.flops),
            "network_flops": int(made.network_flops),
            "contraction_flops": int(made.contraction_flops),
            "peak_bytes": int(made.peak_bytes),
            "passes": float(made.passes),
            "table": str(made),
        }

    return Job(compute, plan=plan)
