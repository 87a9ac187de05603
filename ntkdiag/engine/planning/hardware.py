"""What the default device is good at, as far as it decides how work is cut.

A CPU is fastest on a few examples at a time, whose intermediate values stay in its cache; an
accelerator on as much as its memory holds.
"""

import dataclasses
import os
from typing import ClassVar

import jax

# Bytes of a piece for each example it is for, at least: with many examples pieces are larger.
_PIECE_PER_EXAMPLE = 2**14
# Bytes of the caches of a CPU, about: intermediate values stay in the one, pieces in the other.
_CACHE_OF_LAST_LEVEL = 24 * 2**20
_CACHE_OF_SECOND_LEVEL = 2**20
_PIECE_OF_ACCELERATOR = 2**28
_UNBOUNDED = 2**62


@dataclasses.dataclass(frozen=True)
class Machine:
    """How work is cut for a device.

    Attributes:
        step: Bytes of intermediate values of the examples that are differentiated together.
        piece: Bytes of a Jacobian that is formed while it is contracted, for a few examples.
        workers: How many computations run side by side.
        in_flight: Steps under way: one is computed, on all cores, and one waits.
    """

    step: int
    piece: int
    workers: int
    in_flight: ClassVar[int] = 2

    def piece_of(self, n: int) -> int:
        """Bytes of a piece for n examples.

        Products of many examples outweigh what it costs to read a piece from memory; pieces of a
        few columns only are slow to form.
        """
        return max(self.piece, _PIECE_PER_EXAMPLE * n)

    def shares(self, n: int, output: int) -> int:
        """How many sums of pieces for n examples are made side by side, each of `output` bytes.

        One for each worker, but fewer where the sums outweigh the pieces: such products keep all
        cores busy alone.
        """
        affordable = self.workers * self.piece_of(n) // max(1, output)
        return max(1, min(self.workers, affordable))

    @staticmethod
    def here() -> "Machine":
        """How work is cut for the default device."""
        if jax.default_backend() == "cpu":
            return Machine(_CACHE_OF_LAST_LEVEL, _CACHE_OF_SECOND_LEVEL, workers=_cores())
        # An accelerator takes all examples at once, and large pieces one after the other.
        return Machine(_UNBOUNDED, _PIECE_OF_ACCELERATOR, workers=1)


def _cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
