"""What the gradient kernels are of: the batch of a workload at another size, and its labels."""

import dataclasses

import numpy as np

from benchmarks.workloads import Workload


def of_size(workload: Workload, n: int) -> Workload:
    """The same network with n examples, all at once."""
    return dataclasses.replace(workload, n=n, chunk=None, tile=None)


def labels_of(workload: Workload) -> np.ndarray:
    """Class numbers, the same in every process."""
    return np.random.default_rng(2).integers(0, workload.classes, workload.n)
