"""A kernel of one tile: differentiated step by step, contracted at once."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag.kernels import keywords, steps
from ntkdiag.kernels.compiled import Compiled
from ntkdiag.kernels.contract import contraction
from ntkdiag.kernels.gram import Gram
from ntkdiag.kernels.machine import Machine
from ntkdiag.kernels.plan import Plan
from ntkdiag.kernels.side_by_side import side_by_side
from ntkdiag.kernels.streams import Cut, Stream
from ntkdiag.kernels.task import Side, Task
from ntkdiag.kernels.ways import Way


def compute(task: Task, plan: Plan) -> list[jax.Array]:
    """The kernels of all groups."""
    cuts = [(side, _named(side.ways, plan.ways), min(plan.blocks.step, side.n)) for side in task.sides]
    _begin(task, cuts, plan)
    streams, (finish, rest) = _contractions(task, [steps.of_all(task, *cut) for cut in cuts], plan)
    shares = _nothing(task, plan) if streams else []
    chains = [functools.partial(_chain, streams, share, k, len(shares)) for k, share in enumerate(shares)]
    shares = [chain() for chain in chains] if task.placed else side_by_side(chains)
    return finish(rest, task.weights, shares)


def _begin(task: Task, cuts: list[tuple[Side, tuple[Way, ...], int]], plan: Plan) -> None:
    """Have everything compiled side by side, the first time; what takes longest begins first."""
    key = (tuple(way.key for way in plan.ways), plan.n, plan.m, plan.blocks.step, task.gram, task.columns is None)
    program = task.rows.program
    if key in program.begun or task.placed:
        return
    program.begun.add(key)
    for side, ways, step in cuts:
        side.program.compiled_factors(ways, task.single).begin(*steps.arguments(task, side, step))
        if task.check and not side.program.verified and side.n > 1:
            n = steps.block_size(side, step)
            x = jax.eval_shape(functools.partial(steps.examples, start=0, size=min(n, side.n), n=side.n), side.x)
            kwargs = task.kwargs_of(side)
            side.program.compiled_outputs(side.f, kwargs).begin(task.params, x, keywords.arrays(kwargs))
    streams, (run, rest) = _contractions(task, [steps.shapes_of_all(task, *cut) for cut in cuts], plan)
    shares = jax.eval_shape(functools.partial(_nothing, task, plan)) if streams else []
    for stream, part, _ in streams:
        stream.begin(shares[0], part, 0)
    run.begin(rest, task.weights, shares)


def _contractions(task: Task, blocks: list, plan: Plan) -> tuple[list, tuple[Compiled, list]]:
    """What is contracted piece by piece, as (function, part, shares of it), and the function that does the rest.

    Equal parts of different layers share one function. Blocks may be shapes.
    """
    order = [way.name for way in plan.ways]
    if task.single:  # as `factors.merge` leaves them
        others = [name for name in order if name != "dense"]
        order = ["dense"] * (len(blocks[0][0]) - len(others)) + others
    in_pieces = {"streamed", "dense"} if task.single and len(blocks[0]) > 1 else {"streamed"}
    shape = task.shape(plan.n, plan.m)
    piece = Machine.here().piece_of(sum(side.n for side in task.sides))
    streams, rest = [], [[[] for _ in side] for side in blocks]
    for k, name in enumerate(order):
        part = [[block[k] for block in side] for side in blocks]
        if name in in_pieces:
            cut = Cut.of(_lengths(task.gram, shape, part), task.gram.contraction, piece)
            turns = min(plan.shares, cut.n_pieces)
            share = functools.partial(_share, task.gram, shape, turns, cut)
            streams.append((task.compiled(("stream", shape, turns, cut), share, donate=0), part, turns))
        else:
            for kept, side in zip(rest, part, strict=True):
                for own, factor in zip(kept, side, strict=True):
                    own.append(factor)
    return streams, (contraction(task, shape, plan.ways), rest)


def _nothing(task: Task, plan: Plan) -> list[list[jax.Array]]:
    """What the shares of the pieces are added to."""
    dtype = task.rows.program.tangents.dtype
    dtype = jnp.float64 if task.gram.dot.name == "float64" else jnp.promote_types(dtype, "float32")
    shape = task.shape(plan.n, plan.m)
    return [task.gram.nothing(shape, dtype, task.columns is not None) for _ in range(plan.shares)]


def _named(ways: tuple[Way, ...], like: tuple[Way, ...]) -> tuple[Way, ...]:
    """The same parts contracted like those of the other side."""
    return tuple(dataclasses.replace(way, name=other.name) for way, other in zip(ways, like, strict=True))


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
    """Add one share of the pieces of a part that is formed while it is contracted."""
    row, *column = (Stream.of(blocks, n, cut) for blocks, n in _lengths(gram, shape, sides))
    return gram.stream(totals, row, column[0] if column else None, shape, turn, turns)


def _lengths(gram: Gram, shape: tuple[int, ...], sides: list) -> list[tuple[list, int]]:
    """For rows (and columns): the blocks of a part and the number of examples."""
    lengths = (shape[0], shape[2 if gram.contraction == "full" else 1])
    return list(zip(sides, lengths, strict=False))
