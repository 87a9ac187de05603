"""The examples of a probe as a report shows them: labels, and thumbnails where they are images.

They are written once, as step 0 of the stream "probe" of a run directory:

    labels        as they were handed in, where they are one array
    weights       beside them, where there are some
    thumbnails    [m h w c] in uint8, of the first m examples

Anything else than images has no thumbnails: a report then names examples by their numbers.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8

from ntkdiag.arrays import is_one_array
from ntkdiag.comparison.versions import installed_versions
from ntkdiag.kernel.digest import host_numbers
from ntkdiag.losses import Weighted
from ntkdiag.probe_batch import ProbeBatch
from ntkdiag.runs.run_writer import RunWriter

STREAM = "probe"
MOST_THUMBNAILS = 256
LONGEST_SIDE = 40  # pixels
# Images have sides like these; longer or thinner arrays are sequences, or features.
_SIDES = range(6, 2049)
_MOST_ELONGATED = 3.0


def store_probe(
    out: str | os.PathLike[str], probe: ProbeBatch, probes: Sequence[dict[str, Any]]
) -> None:
    """Write the examples of a probe into a run directory, where they are not there already.

    `probes` says which examples all numbers of the run are of.
    """
    record = {
        "format": "ntkdiag run 1",
        "source": "probe",
        "kernel_of": probe.name,
        "probes": list(probes),
        "dims": {"thumbnails": ["example_shown", "height", "width", "channel"]},
        "versions": installed_versions(),
    }
    arrays = _shown(probe)
    with RunWriter.open(out, record, name=STREAM) as writer:
        if 0 not in writer.finished:
            writer.write(0, {"examples": probe.n_examples}, arrays)


def _shown(probe: ProbeBatch) -> dict[str, np.ndarray]:
    """Labels and thumbnails, as far as there are any."""
    arrays = {}
    labels = probe.y
    if isinstance(labels, Weighted):
        arrays["weights"] = np.asarray(labels.weights)
        labels = labels.y
    if is_one_array(labels):
        arrays["labels"] = host_numbers(labels)
    images = thumbnails(probe.x)
    if images is not None:
        arrays["thumbnails"] = images
    return arrays


def thumbnails(x: Any) -> UInt8[np.ndarray, "m h w c"] | None:
    """The first examples as small images; None where x is no batch of images.

    Black is the smallest number of the batch, white the largest.
    """
    leaves = jax.tree.leaves(x)
    if len(leaves) != 1 or not _are_images(np.shape(leaves[0])):
        return None
    images = np.asarray(leaves[0])[:MOST_THUMBNAILS].astype(np.float64)
    if images.ndim == 3:
        images = images[..., None]  # [n h w] -> [n h w 1]
    n, height, width, channels = images.shape

    # Blocks of pixels become one, so that no side is too long; what is left at the ends is cut off.
    block = math.ceil(max(height, width) / LONGEST_SIDE)
    rows, columns = height // block, width // block
    blocks = images[:, : rows * block, : columns * block]
    blocks = blocks.reshape(n, rows, block, columns, block, channels)
    small = blocks.mean(axis=(2, 4))  # [n rows block columns block c] -> [n rows columns c]

    darkest, brightest = small.min(), small.max()
    scaled = (small - darkest) / max(brightest - darkest, np.finfo(np.float64).tiny)
    return np.round(255.0 * scaled).astype(np.uint8)


def _are_images(shape: Sequence[int]) -> bool:
    """Whether arrays of a shape are images: [n h w], or [n h w c] with one or three channels."""
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)):
        return False
    height, width = shape[1:3]
    elongation = max(height, width) / max(1, min(height, width))
    return height in _SIDES and width in _SIDES and elongation <= _MOST_ELONGATED
