"""Every peer by name."""

import dataclasses
import importlib
from typing import Any

from benchmarks.peers.job import Job
from benchmarks.workloads import Workload


@dataclasses.dataclass(frozen=True)
class Peer:
    """One row of the table.

    Attributes:
        name: As in `--peers`.
        environment: Which interpreter runs it: "jax", "nt" or "torch".
        file: In `benchmarks.peers`.
        options: Handed to its `build`.
    """

    name: str
    environment: str
    file: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def build(self, workload: Workload, reduction: str) -> Job:
        """Ready to be measured in this process."""
        return importlib.import_module(f"benchmarks.peers.{self.file}").build(
            workload, reduction, **self.options
        )


PEERS = (
    Peer("ntkdiag", "jax", "engine"),
    Peer("naive", "jax", "naive"),
    Peer("nt-jacobian", "nt", "neural_tangents", {"implementation": "JACOBIAN_CONTRACTION"}),
    Peer("nt-vector", "nt", "neural_tangents", {"implementation": "NTK_VECTOR_PRODUCTS"}),
    Peer("nt-structured", "nt", "neural_tangents", {"implementation": "STRUCTURED_DERIVATIVES"}),
    Peer("torch-explicit", "torch", "torch_func"),
)


def get(name: str) -> Peer:
    """A peer by name."""
    return {peer.name: peer for peer in PEERS}[name]
