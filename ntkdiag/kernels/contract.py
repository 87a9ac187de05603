"""The end of every kernel: blocks of factors, contracted at once or piece by piece."""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag.kernels.compiled import Compiled
from ntkdiag.kernels.gram import Gram
from ntkdiag.kernels.side_by_side import side_by_side
from ntkdiag.kernels.steps import join_blocks
from ntkdiag.kernels.streams import Cut, Stream
from ntkdiag.kernels.task import Task
from ntkdiag.kernels.ways import Way


@dataclasses.dataclass(frozen=True, eq=False)
class Contraction:
    """How blocks of factors become a kernel, or a tile of one.

    Attributes:
        task: What is computed.
        ways: How its parts are contracted.
        shape: Of the result for n row and m column examples.
        in_pieces: Which ways are contracted piece by piece: products of pieces that stay in the cache run side by side.
        piece: Bytes of a piece.
        shares: How many sums of pieces there are at most.
    """

    task: Task
    ways: tuple[Way, ...]
    shape: tuple[int, ...]
    in_pieces: Collection[str]
    piece: int
    shares: int

    def __call__(self, sides: list) -> list[jax.Array]:
        """The kernels of all groups.

        Args:
            sides: Blocks of factors of the rows, and of the columns where they are others.
        """
        streams, rest = self._divide(sides)
        shares = self._nothing(len(sides) == 2)() if streams else []
        chains = [functools.partial(_chain, streams, share, k, len(shares)) for k, share in enumerate(shares)]
        shares = [chain() for chain in chains] if self.task.placed else side_by_side(chains)
        return self._whole()(rest, self.task.weights, shares)

    def begin(self, sides: list) -> None:
        """Have everything compiled side by side; factors as shapes."""
        streams, rest = self._divide(sides)
        shares = self._nothing(len(sides) == 2).shapes() if streams else []
        for stream, part, _ in streams:
            stream.begin(shares[0], part, 0)
        self._whole().begin(rest, self.task.weights, shares)

    def _divide(self, sides: list) -> tuple[list, list]:
        """What is contracted piece by piece, as (function, part, shares of it), and the blocks of the rest.

        Equal parts of different layers share one function.
        """
        order = [way.name for way in self.ways]
        if self.task.single:  # as `factors.merge` leaves them
            others = [name for name in order if name != "dense"]
            order = ["dense"] * (len(sides[0][0]) - len(others)) + others
        streams, rest = [], [[[] for _ in side] for side in sides]
        for k, name in enumerate(order):
            part = [[block[k] for block in side] for side in sides]
            if name in self.in_pieces:
                cut = Cut.of(_lengths(self.task.gram, self.shape, part), self.task.gram.contraction, self.piece)
                turns = min(self.shares, cut.n_pieces)
                share = functools.partial(_share, self.task.gram, self.shape, turns, cut)
                run = self.task.compiled(("stream", self.shape, turns, cut), share, donate=0)
                streams.append((run, part, turns))
            else:
                for kept, side in zip(rest, part, strict=True):
                    for own, factor in zip(kept, side, strict=True):
                        own.append(factor)
        return streams, rest

    def _whole(self) -> Compiled:
        """The compiled function of (blocks of what is not streamed, weights, shares of pieces) -> kernels."""
        key = ("whole", self.shape, tuple(way.key for way in self.ways))
        return self.task.compiled(key, functools.partial(_contract, self.task.gram, self.shape))

    def _nothing(self, columns: bool) -> Compiled:
        """The compiled function of () -> what the shares of the pieces are added to."""
        gram, shares, dtype = self.task.gram, self.shares, self.task.dtype
        zeros = lambda: [gram.nothing(self.shape, dtype, columns) for _ in range(shares)]
        return self.task.compiled(("nothing", self.shape, shares, columns), zeros)


def _contract(gram: Gram, shape: tuple[int, ...], sides: list, weights: list | None, shares: list) -> list[jax.Array]:
    """The kernels of rows with themselves, or with columns, from blocks of their factors and shares of pieces."""
    n, m = shape[0], shape[2 if gram.contraction == "full" else 1]
    rows = join_blocks(sides[0], n)
    if len(sides) == 1:
        return gram.symmetric(rows, shape, weights, shares)
    tiles = gram(rows, join_blocks(sides[1], m), weights, [share[0] for share in shares])
    return [jnp.broadcast_to(tile, shape) for tile in tiles]


def _chain(streams: list, share: list[jax.Array], number: int, n: int) -> list[jax.Array]:
    """Add to one of n shares its pieces of all parts; a part of fewer pieces than shares leaves some out, in turns."""
    for run, part, turns in streams:
        if number < turns:
            share = run(share, part, number)
        number = (number - turns) % n
    return share


def _share(
    gram: Gram, shape: tuple[int, ...], turns: int, cut: Cut, totals: list, sides: list, turn: Any
) -> list[jax.Array]:
    """Add one share of the pieces of a part."""
    row, *column = (Stream.of(blocks, n, cut) for blocks, n in _lengths(gram, shape, sides))
    return gram.stream(totals, row, column[0] if column else None, shape, turn, turns)


def _lengths(gram: Gram, shape: tuple[int, ...], sides: list) -> list[tuple[list, int]]:
    """For rows (and columns): the blocks of a part and the number of examples."""
    lengths = (shape[0], shape[2 if gram.contraction == "full" else 1])
    return list(zip(sides, lengths, strict=False))
