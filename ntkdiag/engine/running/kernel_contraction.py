"""The end of every kernel: blocks of factors become a kernel, or a tile of one.

1. Parts whose Jacobian is formed late are contracted piece by piece: a chain of pieces runs on each
   core, and adds to a sum of its own.
2. One compiled function (`_rest`) contracts all other parts at once, and adds the sums of step 1.

    chain 0    sum 0 += pieces of part A, then of part B, ...     \
    chain 1    sum 1 += pieces of part A, then of part B, ...      >  K = rest + sum 0 + sum 1
    rest       parts C, D, ...                                    /

A piece is a few columns of the Jacobian, of all examples: J_piece [n k columns], so that
K = sum over pieces of J_piece J_piece^T never needs more than one of them.
"""

import dataclasses
import functools
import typing
from collections.abc import Collection
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from ntkdiag.engine.contracting import streams
from ntkdiag.engine.contracting.contraction_methods import Way
from ntkdiag.engine.contracting.gram import Gram, Tile, Weight
from ntkdiag.engine.contracting.streams import PieceCut, Stream
from ntkdiag.engine.jacobian.factors import Factor
from ntkdiag.engine.planning.task import Task
from ntkdiag.engine.running.differentiation import joined
from ntkdiag.jaxtools.compiling import Compiled, side_by_side

# Blocks of factors of the rows, and of the columns where they are others: [side][block][factor].
Sides = list[list[list[Factor]]]
# The same of one factor: [side][block].
SidesOfFactor = list[list[Factor]]
# One kernel, or the strips of its triangle.
Sum = list[Float[Array, "..."]]


class _Streamed(NamedTuple):
    """A part that is contracted piece by piece."""

    # (sum, factor, number of the share) -> sum with the pieces of that share added.
    add_share: Compiled
    factor: SidesOfFactor  # its factor
    n_shares: int  # among how many sums its pieces are shared out


@dataclasses.dataclass(frozen=True, eq=False)
class KernelContraction:
    """How blocks of factors become a kernel."""

    task: Task  # what is computed
    ways: tuple[Way, ...]  # how its parts are contracted
    tile: Tile  # layout of the result
    in_pieces: Collection[str]  # names of the ways that are contracted piece by piece
    piece: int  # bytes of a piece
    n_shares: int  # how many sums of pieces there are at most

    def __call__(self, sides: Sides) -> list[Float[Array, "..."]]:
        """The kernels of all groups of leaves."""
        # Pieces first: each chain of them adds to a sum of its own, on a thread of its own.
        streamed, at_once = self._divided(sides)
        sums: list[Sum] = []
        if streamed:
            sums = self._nothing(symmetric=len(sides) == 1)()
        chains = []
        for number, one_sum in enumerate(sums):
            chains.append(functools.partial(_chain, streamed, one_sum, number, len(sums)))
        if self.task.placed:  # what lies on several devices is computed in one order by all
            sums = [chain() for chain in chains]
        else:
            sums = side_by_side(chains)
        # Then all other parts, and the sums are added.
        return self._rest()(at_once, self.task.weights, sums)

    def begin(self, sides: Sides, *, one_by_one: bool) -> None:
        """Have everything compiled, side by side or one by one; factors as shapes."""
        streamed, at_once = self._divided(sides)
        sums: list[Sum] = []
        if streamed:
            sums = self._nothing(symmetric=len(sides) == 1).shapes()
        for part in streamed:
            part.add_share.begin(sums[0], part.factor, 0)
            if one_by_one:
                part.add_share.wait()
        rest = self._rest()
        rest.begin(at_once, self.task.weights, sums)
        if one_by_one:
            rest.wait()

    def _divided(self, sides: Sides) -> tuple[list[_Streamed], Sides]:
        """What is contracted piece by piece, and the blocks of the rest."""
        names = self._names(n_factors=len(sides[0][0]))
        streamed = []
        at_once: Sides = [[[] for _ in blocks] for blocks in sides]
        for number, name in enumerate(names):
            factor = [[block[number] for block in blocks] for blocks in sides]
            if name in self.in_pieces:
                streamed.append(self._streamed(factor))
                continue
            for blocks, blocks_of_factor in zip(at_once, factor, strict=True):
                for block, one in zip(blocks, blocks_of_factor, strict=True):
                    block.append(one)
        return streamed, at_once

    def _names(self, n_factors: int) -> list[str]:
        """Name of the way of every factor; in a plain sum the dense ones stand first, joined."""
        names = [way.name for way in self.ways]
        if not self.task.is_plain_sum:
            return names
        # Formed Jacobians were joined to one factor, if there are any: those of dense ways, and of
        # biases that were kept apart from their weights.
        not_dense = [name for name in names if name != "dense"]
        return ["dense"] * (n_factors - len(not_dense)) + not_dense

    def _streamed(self, factor: SidesOfFactor) -> _Streamed:
        """A part contracted piece by piece; equal parts of several layers share one function."""
        n_examples = self.tile.n
        if len(factor) == 2:
            n_examples += self.tile.m
        # What is streamed is an outer product or dense: these can be cut into pieces of columns.
        first = typing.cast(streams.Unformed, factor[0][0])
        cut = PieceCut.of(first, n_examples, self.tile.contraction, self.piece)
        n_shares = min(self.n_shares, cut.n_pieces)
        # The key has shapes only: layers of one shape are compiled once.
        add_share = functools.partial(_with_share, self.task.gram, self.tile, cut, n_shares)
        key = "stream", self.tile, n_shares, cut
        return _Streamed(self.task.compiled(key, add_share, donate=0), factor, n_shares)

    def _rest(self) -> Compiled:
        """(blocks of what is contracted at once, weights, sums of pieces) -> kernels, compiled."""
        key = "rest", self.tile, tuple(way.key for way in self.ways)
        return self.task.compiled(key, functools.partial(_contracted, self.task.gram, self.tile))

    def _nothing(self, symmetric: bool) -> Compiled:
        """() -> what the pieces are added to at first, compiled."""
        # The task, which holds parameters, is no part of what is kept.
        zeros = functools.partial(_zeros, self.tile, self.task.dtype, symmetric, self.n_shares)
        return self.task.compiled(("nothing", self.tile, self.n_shares, symmetric), zeros)


def _zeros(tile: Tile, dtype: np.dtype, symmetric: bool, n_sums: int) -> list[Sum]:
    """Zeros for so many sums of pieces."""
    return [streams.nothing(tile, dtype, symmetric) for _ in range(n_sums)]


def _contracted(
    gram: Gram, tile: Tile, sides: Sides, weights: list[Weight] | None, sums: list[Sum]
) -> list[Float[Array, "..."]]:
    """The kernels of rows with themselves or with columns, from factors and sums of pieces."""
    symmetric = len(sides) == 1
    # Blocks wait apart until they are contracted, and are joined here. The last step was filled up
    # with repeated examples: those are cut off.
    rows = joined(sides[0], tile.n)
    if not rows and sums:  # every part was contracted in pieces
        return [streams.sum_of_shares(sums, tile, symmetric)]
    if symmetric:
        kernels = gram.symmetric(rows, tile, weights)
    else:
        kernels = gram.rectangular(rows, joined(sides[1], tile.m), tile, weights)
    if sums:
        kernels[0] = streams.sum_of_shares(sums, tile, symmetric) + kernels[0]
    return kernels


def _chain(streamed: list[_Streamed], total: Sum, number: int, n_sums: int) -> Sum:
    """Add to sum `number` its share of the pieces of all parts.

    A part of fewer pieces than there are sums leaves some out; which ones goes round.
    """
    # Which share of a part falls to this sum; none where there are not so many.
    turn = number
    for part in streamed:
        if turn < part.n_shares:
            total = part.add_share(total, part.factor, turn)
        # The sums that this part leaves out are the first to get a share of the next one.
        turn = (turn - part.n_shares) % n_sums
    return total


def _with_share(
    gram: Gram,
    tile: Tile,
    cut: PieceCut,
    n_shares: int,
    total: Sum,
    factor: SidesOfFactor,
    share: jax.Array,
) -> Sum:
    """A sum with one share of the pieces of a part added."""
    row = Stream.of(factor[0], tile.n, cut)  # type: ignore[arg-type]
    column = None
    if len(factor) == 2:
        column = Stream.of(factor[1], tile.m, cut)  # type: ignore[arg-type]
    return streams.with_share(total, row, column, tile, gram.precision, share, n_shares)
