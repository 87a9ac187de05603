"""Images of examples as small pictures that stand in a page themselves."""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8

MOST_THUMBNAILS = 256
LONGEST_SIDE = 40  # pixels
# Images have sides like these; longer or thinner arrays are sequences, or features.
_SIDES = range(6, 2049)
_MOST_ELONGATED = 3.0


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


def data_address(image: UInt8[np.ndarray, "h w c"]) -> str:
    """An address that holds an image itself, as PNG."""
    return f"data:image/png;base64,{base64.b64encode(_png(image)).decode()}"


def _png(image: UInt8[np.ndarray, "h w c"]) -> bytes:
    """A PNG file of 8 bits per channel, grey or RGB."""
    height, width, channels = image.shape
    colour_type = 2 if channels == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    # Every row begins with the number of its filter, 0 for none.
    rows = np.concatenate(
        [np.zeros((height, 1), np.uint8), image.reshape(height, width * channels)], axis=1
    )
    chunks = [
        _chunk(b"IHDR", header),
        _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
        _chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    """A part of a PNG file: length, kind, content, and a checksum of both."""
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
