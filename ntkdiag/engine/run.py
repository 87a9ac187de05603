"""Running a kernel: inside the caller's trace, as a joint batch, as one tile, or tile by tile.

    inside a caller's trace    factors and contraction become a part of the caller's program
    joint                      the batch is one example with N C outputs
    one tile                   everything at once, compiled here
    tile by tile               into arrays on the host

    x [n ...] -> steps of a few examples -> blocks of pieces -> contraction -> K

A piece is a factor with the way it is contracted.

A step is as many examples as keep their intermediate values in the cache of the device. In a kernel
of one tile the pieces of all steps wait side by side, and are joined only where they are
contracted. In a kernel of several tiles the steps of a block are written into the memory of that
block, so that a block never exists twice:

    block of 8 examples, steps of 3:    [0 1 2] [3 4 5] [5 6 7]

The end of every kernel, or tile of one, is its contraction. Some parts are contracted chunk by
chunk: a chain of products runs on each core, and adds to a sum of its own. One compiled function
contracts all other parts at once, and adds these sums:

    chain 0    sum 0 += chunks of part A, then of part B, ...   \
    chain 1    sum 1 += chunks of part A, then of part B, ...    >  K = rest + sum 0 + sum 1
    rest       parts C, D, ...                                  /
"""

import dataclasses
import functools
import math
import typing
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.engine import streams
from ntkdiag.engine.contraction import Gram, Tile, Way, Weight
from ntkdiag.engine.inputs import Inputs, Side
from ntkdiag.engine.jacobian.factors import (
    Factor,
    Piece,
    concatenate_examples,
    write_examples,
    zeros_for_examples,
)
from ntkdiag.engine.plan import Machine, Plan, in_chunks
from ntkdiag.engine.streams import ChunkCut
from ntkdiag.jaxtools import independence, jaxprs
from ntkdiag.jaxtools.caching import Fixed, arrays_of, switches
from ntkdiag.jaxtools.cpu import compiled, compiler_options, side_by_side
from ntkdiag.jaxtools.precision import in_full_precision
from ntkdiag.kernel.reduction import KernelArray
from ntkdiag.progress import under_way

# Blocks of pieces that one compiled function takes: more make it slow to compile.
_MOST_BLOCKS = 32

# One for every group of leaves.
Kernels: TypeAlias = Sequence[KernelArray]
# Blocks of examples of the rows, and of the columns where they are others: [side][block][piece].
Sides: TypeAlias = list[list[list[Piece]]]
# One kernel, or the strips of its triangle.
Sum: TypeAlias = list[Float[Array, "..."]]


def run(inputs: Inputs, plan: Plan | None) -> Kernels:
    """The kernels of all groups of leaves, before the reduction is finished."""
    if plan is None:
        return _jointly(inputs) if inputs.joint else _in_a_trace(inputs)
    if plan.blocks.one_tile:
        return _in_one_tile(inputs, plan)
    n_tiles = plan.blocks.n_rows * plan.blocks.n_columns
    if inputs.symmetric:
        n_tiles = plan.blocks.n_rows * (plan.blocks.n_rows + 1) // 2
    with under_way("kernel", n_tiles, inputs.progress) as work:
        kernels = [
            np.empty(inputs.tile(inputs.n, inputs.m).shape, inputs.dtype)
            for _ in range(inputs.gram.n_groups)
        ]
        computed = None
        for tile in _tiles(inputs, plan):
            # While this tile is computed, the one before is fetched, which waits for it.
            if computed is not None:
                _write_tile(inputs, plan, computed, kernels)
                work.advance()
            computed = tile
        return kernels


def _in_a_trace(inputs: Inputs) -> list[Array]:
    """The kernels of all groups of leaves as one block, inside a caller's trace."""
    factors = [_factors_at_once(inputs, side) for side in inputs.sides]
    tile = inputs.tile(inputs.n, inputs.m)
    if inputs.symmetric:
        return inputs.gram.symmetric(factors[0], tile, inputs.weights)
    return inputs.gram.rectangular(factors[0], factors[1], tile, inputs.weights)


def _factors_at_once(inputs: Inputs, side: Side) -> list[Factor]:
    """The factors of all examples of a side; in a trace they are a part of the caller's program."""
    differentiate = functools.partial(side.program.pieces, side.ways)
    if not inputs.in_a_trace:
        differentiate = side.program.compiled_pieces(side.ways)
    kwargs = arrays_of(side.batch.kwargs)
    pieces, _ = differentiate(inputs.params, side.basis, kwargs, side.batch.x)
    return [piece.factor for piece in pieces]


def _jointly(inputs: Inputs) -> Kernels:
    """Each batch differentiated as one example with N C outputs, then reduced."""
    # With all outputs of all examples as directions, K[(n c), (m d)] is one full kernel of one
    # example; the directions V of the reduction are multiplied afterwards.
    factors = [_factors_at_once(inputs, side) for side in inputs.sides]
    n, m = inputs.n, inputs.m
    reduction = inputs.reduction
    c, d = reduction.rows.n_outputs, reduction.columns.n_outputs
    # Directions of the rows [k c] and of the columns [l d].
    dtype = inputs.rows.program.jacobian.dtype
    v = reduction.rows.basis(dtype)
    w = reduction.columns.basis(dtype)
    pattern = {"full": "nkml->nkml", "trace": "nkmk->nm", "diagonal": "nkmk->nmk"}
    results = []
    # [1 (n c) 1 (m d)] -> [n c m d] -> [n k m l] -> as the reduction pairs directions
    for kernel in inputs.gram(factors[0], factors[-1], inputs.weights):
        full = jnp.broadcast_to(kernel, (1, n * c, 1, m * d)).reshape(n, c, m, d)
        full = jnp.einsum("kc,ncmd,ld->nkml", v, full, w, precision="highest")
        if inputs.symmetric:  # bitwise
            full = (full + jnp.transpose(full, (2, 3, 0, 1))) / 2
        results.append(jnp.einsum(pattern[reduction.contraction], full))
    return results


def _in_one_tile(inputs: Inputs, plan: Plan) -> list[Float[Array, "..."]]:
    """The kernels of all groups of leaves; one, of all of them, where no groups are asked for."""
    sides = []
    for side in inputs.sides:
        # The ways of a side under the names they have in the plan.
        named = zip(side.ways, plan.ways, strict=True)
        ways = tuple(dataclasses.replace(way, name=planned.name) for way, planned in named)
        n = side.batch.n
        step = min(plan.blocks.step, n)
        # A block has the examples of a step, or of more where that would be too many blocks.
        size = step * math.ceil(n / step / _MOST_BLOCKS)
        blocks = []
        for start in range(0, n, size):
            n_steps = math.ceil(min(size, n - start) / step)
            blocks.append(_differentiated(inputs, side, ways, step, start, n_steps * step))
        sides.append(blocks)
    # Pieces of several steps are joined to be contracted at once; what was formed of each is
    # contracted chunk by chunk instead, without that copy.
    by_chunk = {"streamed"}
    if inputs.is_plain_sum and max(inputs.n, inputs.m) > plan.blocks.step:
        by_chunk.add("dense")
    tile = inputs.tile(inputs.n, inputs.m)
    bytes_of_chunk = Machine.here().chunk_of(inputs.n + inputs.n_columns)
    return _contracted(inputs, tile, sides, by_chunk, bytes_of_chunk, plan.shares)


class _ComputedTile(NamedTuple):
    """A tile that may still be under way."""

    kernels: list[Array]  # one for every group of leaves
    row: int  # its first row
    column: int  # its first column


def _tiles(inputs: Inputs, plan: Plan) -> Iterator[_ComputedTile | None]:
    """All tiles in turn; None where the memory of the one before is needed back."""
    # Some blocks of rows are held while the columns pass by. They are freed before the next are
    # made: memory is planned for one block at a time.
    blocks = plan.blocks
    size = blocks.size
    machine = Machine.here()
    tile = inputs.tile(size, size)
    # Every tile would have to form late Jacobians again: they are formed with their block.
    by_chunk = {"dense"} if inputs.is_plain_sum and in_chunks(size, tile.contraction) else set()
    n_shares = machine.shares(2 * size, math.prod(tile.shape) * inputs.dtype.itemsize)

    def block(side: Side, start: int) -> list[Piece]:
        return _differentiated(inputs, side, side.ways, blocks.step, start, size)

    def contracted(*sides: list[Piece]) -> list[Array]:
        one_block_each = [[pieces] for pieces in sides]
        return _contracted(inputs, tile, one_block_each, by_chunk, machine.chunk, n_shares)

    row_starts = range(0, inputs.n, size)
    kept: dict[int, list[Piece]] = {}  # of all columns, where they fit
    for first in range(0, len(row_starts), blocks.held):
        yield None
        # The previous rows and columns are freed.
        columns = None
        rows: dict[int, list[Piece]] = {}
        for start in row_starts[first : first + blocks.held]:
            rows[start] = block(inputs.rows, start)
        # All columns in turn; of a triangle, from its first row on.
        for column in range(row_starts[first] if inputs.symmetric else 0, inputs.m, size):
            columns = (rows if inputs.symmetric else kept).get(column)
            if columns is None:
                yield None
                columns = block(inputs.sides[-1], column)
            if blocks.holds_columns and not inputs.symmetric:
                kept[column] = columns
            for row in rows:
                if inputs.symmetric and row == column:  # a triangle is enough
                    yield _ComputedTile(contracted(columns), row, column)
                elif not inputs.symmetric or row < column:
                    yield _ComputedTile(contracted(rows[row], columns), row, column)
    yield None


def _write_tile(
    inputs: Inputs, plan: Plan, computed: _ComputedTile, kernels: list[np.ndarray]
) -> None:
    """Wait for a tile, and write it and its mirror image into the kernels."""
    size = plan.blocks.size
    row, column = computed.row, computed.column
    # The last blocks are filled up with repeated examples: those are cut off.
    n = min(size, inputs.n - row)
    m = min(size, inputs.m - column)
    rows, columns = slice(row, row + n), slice(column, column + m)
    tile = inputs.tile(size, size)
    inside = tile.at(slice(0, n), slice(0, m))
    for kernel, array in zip(kernels, computed.kernels, strict=True):
        on_host = np.asarray(array)[inside]
        kernel[tile.at(rows, columns)] = on_host
        if inputs.symmetric and row != column:
            kernel[tile.at(columns, rows)] = tile.mirrored(on_host)


# Differentiation.


def _differentiated(
    inputs: Inputs, side: Side, ways: tuple[Way, ...], step: int, start: int, size: int
) -> list[Piece]:
    """Pieces of examples start to start + size; beyond the end the last one is repeated."""
    batch = side.batch
    kwargs = arrays_of(batch.kwargs)
    differentiate = side.program.compiled_pieces(ways, merged=inputs.is_plain_sum)
    # The last step may repeat some examples of the one before.
    firsts = [min(first, size - step) for first in range(0, size, step)]
    # Outputs wait on the device: fetching one waits for its step.
    outputs: list[Array] = []
    block: list[Piece] = []
    in_flight = Machine.here().in_flight
    for first in firsts:
        # JAX computes while this loop continues: more steps in flight would need more memory.
        if len(outputs) >= in_flight:
            jax.block_until_ready(outputs[-in_flight])
        x = _examples(batch.x, start + first, step, batch.n)
        pieces, y = differentiate(inputs.params, side.basis, kwargs, x)
        outputs.append(y)
        if size == step:  # a block of one step is that step
            block = pieces
        else:
            block = block or zeros_for_examples(pieces, size)
            block = compiled(write_examples, donate=0)(block, pieces, first)

    # What came beside the pieces are outputs of each example alone: [size C]. The first time, they
    # are compared with f of the whole block.
    n = min(size, batch.n - start)
    is_verified = switches(batch.kwargs) in side.program.verified
    if inputs.check and not is_verified and n > 1:
        alone = np.empty((size, outputs[0].shape[-1]), outputs[0].dtype)
        for first, y in zip(firsts, outputs, strict=True):
            alone[first : first + step] = y
        _verify(inputs, side, _examples(batch.x, start, n, batch.n), alone[:n])
    return block


def _verify(inputs: Inputs, side: Side, x: PyTree, alone: np.ndarray) -> None:
    """Compare f of a block of examples with the outputs of each example alone [n C]."""
    batch, program = side.batch, side.program
    fixed = Fixed.of(batch.kwargs)

    def outputs(params: PyTree, x: PyTree, arrays: list) -> PyTree:
        return batch.f(params, x, **fixed.fill(arrays))

    # f is compiled for this comparison only.
    options = compiler_options(reduces=False, once=True)
    run_f = jax.jit(in_full_precision(outputs), compiler_options=options)
    all_at_once = functools.partial(run_f, arrays=arrays_of(batch.kwargs))
    # Whether f branches on its numbers (a comparison, an argmax): rounding may then change outputs
    # completely.
    judges = jaxprs.judges_numbers(program.jacobian.jaxpr)
    do = independence.how_to_part(batch.f)
    roundoff = program.jacobian.roundoff
    independence.check_independent(all_at_once, inputs.params, x, alone, roundoff, judges, do)
    program.verified.add(switches(batch.kwargs))


def _examples(x: PyTree[Array], start: int, size: int, n: int) -> PyTree[Array]:
    """Examples start to start + size of n, the last one again and again beyond the end."""
    if start == 0 and size == n:
        return x
    missing = start + size - n
    if missing <= 0:
        return jax.tree.map(lambda v: v[start : start + size], x)

    def filled(v: Array) -> Array:
        # [n - start ...] and [missing ...] -> [size ...]
        last = jnp.repeat(v[-1:], min(missing, size - 1), axis=0)
        return jnp.concatenate([v[min(start, n - 1) :], last])

    return jax.tree.map(filled, x)


# Contraction.


class _Streamed(NamedTuple):
    """A part that is contracted chunk by chunk."""

    blocks: list[list[Factor]]  # its factors: [side][block]
    cut: ChunkCut  # how it is cut
    n_shares: int  # among how many sums its chunks are shared out


def _contracted(
    inputs: Inputs,
    tile: Tile,
    sides: Sides,
    by_chunk: Collection[str],
    bytes_of_chunk: int,
    n_shares: int,
) -> list[Float[Array, "..."]]:
    """The kernels of all groups of leaves, from blocks of pieces."""
    symmetric = len(sides) == 1
    # What is contracted chunk by chunk, and the rest.
    streamed = []
    at_once: list[list[list[Factor]]] = [[] for _ in sides]  # [side][part][block]
    n_examples = tile.n if symmetric else tile.n + tile.m
    for number, piece in enumerate(sides[0][0]):
        factors = [[block[number].factor for block in blocks] for blocks in sides]
        if piece.way in by_chunk:
            # What is streamed is an outer product, rows or dense: these can be cut.
            first = typing.cast(streams.Unformed, piece.factor)
            cut = ChunkCut.of(first, n_examples, tile.contraction, bytes_of_chunk)
            streamed.append(_Streamed(factors, cut, min(n_shares, cut.n_chunks)))
            continue
        for parts, blocks in zip(at_once, factors, strict=True):
            parts.append(blocks)

    # Each chain of chunks adds to a sum of its own, on a thread of its own.
    sums: list[Sum] = []
    if streamed:
        zeros = compiled(streams.zeros, static=(0, 1, 2, 3))
        sums = zeros(tile, inputs.dtype, symmetric, n_shares)
    chain = functools.partial(_chain, inputs.gram.precision, tile, streamed)
    chains = [functools.partial(chain, total, k, len(sums)) for k, total in enumerate(sums)]
    if inputs.placed:  # all processes have to compute sharded arrays in the same order
        sums = [run_chain() for run_chain in chains]
    else:
        sums = side_by_side(chains)
    # Then all other parts, and the sums are added.
    rest = compiled(_rest, static=(0, 1))
    return rest(inputs.gram, tile, at_once, inputs.weights, sums)


def _chain(
    precision: str, tile: Tile, streamed: list[_Streamed], total: Sum, number: int, n_sums: int
) -> Sum:
    """Add to sum `number` its share of the chunks of all parts."""
    add_share = compiled(streams.with_share, static=(0, 1, 2, 3), donate=4)
    # The share of a part that this sum takes; a part of few chunks leaves some sums out, in turn.
    turn = number
    for part in streamed:
        if turn < part.n_shares:
            total = add_share(precision, tile, part.cut, part.n_shares, total, part.blocks, turn)
        # The sums that this part leaves out are the first to get a share of the next one.
        turn = (turn - part.n_shares) % n_sums
    return total


def _rest(
    gram: Gram,
    tile: Tile,
    sides: list[list[list[Factor]]],  # [side][part][block]
    weights: list[Weight] | None,
    sums: list[Sum],
) -> list[Float[Array, "..."]]:
    """The kernels of rows with themselves or with columns, from factors and sums of chunks."""
    symmetric = len(sides) == 1
    # Blocks wait apart until they are contracted, and are joined here. The last step was filled up
    # with repeated examples: those are cut off.
    joined = []
    for parts, n in zip(sides, (tile.n, tile.m), strict=False):
        joined.append([concatenate_examples(blocks, n) for blocks in parts])
    if not joined[0] and sums:  # every part was contracted chunk by chunk
        return [streams.sum_of_shares(sums, tile, symmetric)]
    if symmetric:
        kernels = gram.symmetric(joined[0], tile, weights)
    else:
        kernels = gram.rectangular(joined[0], joined[1], tile, weights)
    if sums:
        kernels[0] = streams.sum_of_shares(sums, tile, symmetric) + kernels[0]
    return kernels
