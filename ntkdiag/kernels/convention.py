"""What a kernel's numbers mean: reduction over outputs, mode, dtype, probe."""

import dataclasses
from typing import Literal

Outputs = Literal["mean", "trace", "full", "diagonal", "sum-of-logits", "projection"]


@dataclasses.dataclass(frozen=True)
class Convention:
    """The convention a kernel was computed in; it travels with every result.

    With K[n,o,m,p] = <J[n,o], J[m,p]> and C outputs per example, `outputs` is one of

    - ``"full"``: K itself, `[n o m p]`;
    - ``"mean"``: sum_o K[n,o,m,o] / C, `[n m]` (neural-tangents' default convention);
    - ``"trace"``: sum_o K[n,o,m,o], `[n m]`;
    - ``"diagonal"``: K[n,o,m,o], `[n m o]`;
    - ``"sum-of-logits"``: the kernel of sum_o f_o / sqrt(C), `[n m]` (pseudo-NTK);
    - ``"projection"``: the full kernel of V^T f for a given V of shape `[C k]`, `[n k m l]`.
    """

    outputs: Outputs = "mean"
    n_outputs: int = 1
    examples: Literal["independent", "joint"] = "independent"
    mode: str = "unspecified"
    precision: str = "highest"
    probe: str | None = None

    def __str__(self) -> str:
        """One line for tables and reports."""
        probe = f", probe {self.probe[:8]}" if self.probe else ""
        return f"outputs={self.outputs} (C={self.n_outputs}), examples={self.examples}, mode={self.mode}{probe}"
