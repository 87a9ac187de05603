"""The labels of a probe, which the report of a run reads.

They are written once, as step 0 of the stream "probe" of a run directory:

    labels        as they were passed, where they are one array
    weights       beside them, where there are some
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ntkdiag.arrays import is_one_array
from ntkdiag.comparison.versions import installed_versions
from ntkdiag.kernel.convention import host_numbers
from ntkdiag.losses import Weighted
from ntkdiag.probe_batch import ProbeBatch
from ntkdiag.runs.run_writer import RunWriter

STREAM = "probe"


def store_probe(
    out: str | os.PathLike[str], probe: ProbeBatch, probes: Sequence[dict[str, Any]]
) -> None:
    """Write the labels of a probe into a run directory, unless they are already there.

    `probes` says which examples all numbers of the run are of.
    """
    record = {
        "format": "ntkdiag run 1",
        "source": "probe",
        "kernel_of": probe.name,
        "probes": list(probes),
        "versions": installed_versions(),
    }
    arrays = _labels(probe)
    with RunWriter(out, record, name=STREAM) as writer:
        if 0 not in writer.finished or writer.read(0) is None:
            writer.write(0, {"examples": probe.n_examples}, arrays)


def _labels(probe: ProbeBatch) -> dict[str, np.ndarray]:
    """Labels and their weights, if any."""
    arrays = {}
    labels = probe.y
    if isinstance(labels, Weighted):
        arrays["weights"] = np.asarray(labels.weights)
        labels = labels.y
    if is_one_array(labels):
        arrays["labels"] = host_numbers(labels)
    return arrays
