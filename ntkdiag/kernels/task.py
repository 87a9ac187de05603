"""One kernel to compute: everything checked, the ways chosen, ready to run inline, jointly, or in blocks."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import _compat
from ntkdiag.kernels import interaction, keywords, meshes
from ntkdiag.kernels import plan as planning
from ntkdiag.kernels.arguments import is_traced
from ntkdiag.kernels.compiled import Compiled
from ntkdiag.kernels.gram import Gram, mirrored
from ntkdiag.kernels.machine import Machine
from ntkdiag.kernels.program import Program
from ntkdiag.kernels.progress import bar
from ntkdiag.kernels.reduction import Reduction
from ntkdiag.kernels.side_by_side import side_by_side
from ntkdiag.kernels.streams import Cut, Stream
from ntkdiag.kernels.ways import Way
from ntkdiag.tangents.factors import join

# Blocks of factors that one compiled function takes: more make it slow to compile.
_MOST_BLOCKS = 32


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """Rows or columns: a function, its examples, and how its factors are formed.

    `kwargs` are its own keyword arguments, None where they are those of the task.
    """

    f: Callable
    program: Program
    x: Any
    n: int
    ways: tuple[Way, ...]
    kwargs: dict | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A kernel to compute.

    Attributes:
        rows: The row examples.
        columns: The column examples; None where they are the rows.
        params: Parameters.
        kwargs: Keyword arguments of f.
        reduction: Over outputs.
        gram: Products and groups.
        keys: Names of the groups; empty for one kernel.
        weights: 1/P for every factor; None without preconditioner.
        check: Whether independence of examples is verified.
        call: For messages.
    """

    rows: Side
    columns: Side | None
    params: Any
    kwargs: dict
    reduction: Reduction
    gram: Gram
    keys: list[str]
    weights: list | None
    check: bool
    call: str

    @functools.cached_property
    def basis(self) -> jax.Array:
        """Output directions of the rows."""
        return self._basis(self.rows)

    def _basis(self, side: Side) -> jax.Array:
        tangents = side.program.tangents
        if side.program.joint:
            return jnp.eye(tangents.n_outputs, dtype=tangents.dtype)
        reduction = self.reduction if side is self.rows else self.reduction.columns or self.reduction
        return reduction.basis(tangents.dtype)

    def plan(self, budget: int) -> planning.Plan:
        """The plan within a budget."""
        m = self.columns.n if self.columns else 0
        side = self.rows
        return planning.make(
            side.program, side.ways, self.basis, self.reduction, side.n, m, budget, self.call, self.single
        )

    def shape(self, n: int, m: int) -> tuple[int, ...]:
        """Shape of a tile."""
        return self.reduction.tile_shape(n, m)

    def run(self, budget: int, progress: bool) -> list[Any]:
        """The kernels of all groups, before the reduction is finished."""
        arrays = (self.params, self.rows.x, self.columns and self.columns.x, keywords.arrays(self.kwargs), self.weights)
        if mesh := meshes.explicit(arrays):
            return meshes.automatically(lambda *arrays: self._of(*arrays).run(budget, progress), mesh, *arrays)
        joint = self.rows.program.joint
        if is_traced(arrays):
            return self._jointly() if joint else self._inline()
        plan = None if joint else self.plan(budget)
        with self.gram.dot.mode():
            if plan is None:
                return self._jointly()
            return self.whole(plan) if plan.blocks.whole else self.in_blocks(plan.blocks, progress)

    def _of(self, params: Any, x1: Any, x2: Any, kwargs: list, weights: list | None) -> "Task":
        """The same task for other arrays."""
        rows = dataclasses.replace(self.rows, x=x1)
        columns = self.columns and dataclasses.replace(self.columns, x=x2)
        filled = keywords.Fixed.of(self.kwargs).fill(kwargs)
        return dataclasses.replace(self, rows=rows, columns=columns, params=params, kwargs=filled, weights=weights)

    def _inline(self) -> list[Any]:
        """As one block, inside a caller's trace."""
        factors = lambda s: s.program.factors(s.ways, self.params, self._basis(s), self.kwargs, s.x)[0]
        rows = factors(self.rows)
        if self.columns is None:
            return self.gram.symmetric(rows, self.shape(self.rows.n, self.rows.n), self.weights)
        tiles = self.gram(rows, factors(self.columns), self.weights)
        return [jnp.broadcast_to(tile, self.shape(self.rows.n, self.columns.n)) for tile in tiles]

    def _jointly(self) -> list[Any]:
        """Each batch differentiated as one example with N C outputs, then reduced."""
        traced = is_traced(self.params, self.rows.x, self.kwargs)

        def factors(side):
            run = (
                functools.partial(side.program.factors, side.ways)
                if traced
                else side.program.compiled_factors(side.ways)
            )
            return run(self.params, self._basis(side), keywords.arrays(self.kwargs), side.x)[0]

        rows = factors(self.rows)
        columns = rows if self.columns is None else factors(self.columns)
        other = self.reduction.columns or self.reduction
        n, m, c, d = self.rows.n, (self.columns or self.rows).n, self.reduction.n_outputs, other.n_outputs
        basis, other_basis = (r.basis(self.rows.program.tangents.dtype) for r in (self.reduction, other))
        results = []
        for k in self.gram(rows, columns, self.weights):
            k = jnp.broadcast_to(k, (1, n * c, 1, m * d)).reshape(n, c, m, d)
            k = jnp.einsum("ko,nomp,lp->nkml", basis, k, other_basis, precision="highest")
            k = (k + jnp.transpose(k, (2, 3, 0, 1))) / 2 if self.columns is None else k
            pattern = {"full": "nkml->nkml", "trace": "nkmk->nm", "diagonal": "nkmk->nmk"}
            results.append(jnp.einsum(pattern[self.reduction.contraction], k))
        return results

    def whole(self, plan: planning.Plan) -> list[Any]:
        """As one tile: differentiated step by step, contracted at once."""
        sides = [self.rows] if self.columns is None else [self.rows, self.columns]
        cuts = [(side, _named(side.ways, plan.ways), min(plan.blocks.step, side.n)) for side in sides]
        self._begin(cuts, plan)
        streams, finish = self._contractions([self._blocks(*cut) for cut in cuts], plan)
        shares = self._nothing(plan) if streams else []
        chains = [functools.partial(_chain, streams, share, k, len(shares)) for k, share in enumerate(shares)]
        placed = self._placed([side for side, _, _ in cuts])
        shares = [chain() for chain in chains] if placed else side_by_side(chains)
        run, rest = finish
        return run(rest, self.weights, shares)

    def _begin(self, cuts: list[tuple[Side, tuple[Way, ...], int]], plan: planning.Plan) -> None:
        """Have everything compiled side by side, the first time; what takes longest begins first."""
        key = (tuple(way.key for way in plan.ways), plan.n, plan.m, plan.blocks.step, self.gram, self.columns is None)
        program = self.rows.program
        if key in program.begun or self._placed([side for side, _, _ in cuts]):
            return
        program.begun.add(key)
        for side, ways, step in cuts:
            side.program.compiled_factors(ways, self.single).begin(*self._step(side, step))
            if self.check and not side.program.verified and side.n > 1:
                n = self._block_size(side, step)
                x = jax.eval_shape(functools.partial(_examples, start=0, size=min(n, side.n), n=side.n), side.x)
                kwargs = self._kwargs(side)
                side.program.compiled_outputs(side.f, kwargs).begin(self.params, x, keywords.arrays(kwargs))
        streams, (run, rest) = self._contractions([self._shapes(*cut) for cut in cuts], plan)
        shares = jax.eval_shape(functools.partial(self._nothing, plan)) if streams else []
        for stream, part, _ in streams:
            stream.begin(shares[0], part, 0)
        run.begin(rest, self.weights, shares)

    def _placed(self, sides: list[Side]) -> bool:
        """Whether somebody chose the devices."""
        chosen = jax.config.jax_default_device is not None  # type: ignore[attr-defined]
        return chosen or _compat.committed((self.params, self.kwargs, *(side.x for side in sides)))

    def _contractions(self, blocks: list, plan: planning.Plan) -> tuple[list, tuple[Compiled, list]]:
        """What is contracted piece by piece, as (function, part, shares of it), and the function that does the rest.

        Equal parts of different layers share one function. Blocks may be shapes.
        """
        order = [way.name for way in plan.ways]
        if self.single:  # as `factors.merge` leaves them
            others = [name for name in order if name != "dense"]
            order = ["dense"] * (len(blocks[0][0]) - len(others)) + others
        in_pieces = {"streamed", "dense"} if self.single and len(blocks[0]) > 1 else {"streamed"}
        shape = self.shape(plan.n, plan.m)
        piece = Machine.here().piece_of(sum(side.n for side in (self.rows, self.columns) if side))
        streams, rest = [], [[[] for _ in side] for side in blocks]
        for k, name in enumerate(order):
            part = [[block[k] for block in side] for side in blocks]
            if name in in_pieces:
                cut = Cut.of(_lengths(self.gram, shape, part), self.gram.contraction, piece)
                turns = min(plan.shares, cut.n_pieces)
                share = functools.partial(_share, self.gram, shape, turns, cut)
                streams.append((self._compiled(("stream", shape, turns, cut), share, donate=0), part, turns))
            else:
                for kept, side in zip(rest, part, strict=True):
                    for own, factor in zip(kept, side, strict=True):
                        own.append(factor)
        key = ("whole", shape, tuple(way.key for way in plan.ways))
        return streams, (self._compiled(key, functools.partial(_contract, self.gram, shape)), rest)

    def _nothing(self, plan: planning.Plan) -> list[list[jax.Array]]:
        """What the shares of the pieces are added to."""
        dtype = self.rows.program.tangents.dtype
        dtype = jnp.float64 if self.gram.dot.name == "float64" else jnp.promote_types(dtype, "float32")
        shape = self.shape(plan.n, plan.m)
        return [self.gram.nothing(shape, dtype, self.columns is not None) for _ in range(plan.shares)]

    def in_blocks(self, blocks: planning.Blocks, progress: bool) -> list[np.ndarray]:
        """Tile by tile into arrays on the host; row blocks stay while the columns pass by."""
        symmetric = self.columns is None
        shape = self.shape(self.rows.n, (self.columns or self.rows).n)
        dtype = np.result_type(
            self.rows.program.tangents.dtype, *([np.float64] if self.gram.dot.name == "float64" else [])
        )
        out = [np.empty(shape, dtype) for _ in range(self.gram.n_groups)]
        size, starts = blocks.size, range(0, self.rows.n, blocks.size)
        column_starts = starts if symmetric else range(0, self.columns.n, size)  # type: ignore[union-attr]
        kept: dict[int, list] = {}

        def columns_of(start):
            if start not in kept:
                factors = self._factors(self.columns or self.rows, start, blocks)
                if not (blocks.holds_columns and not symmetric):
                    return factors
                kept[start] = factors
            return kept[start]

        n_tiles = len(starts) * (len(starts) + 1) // 2 if symmetric else len(starts) * len(column_starts)
        with bar(n_tiles, progress) as advance:
            held: dict[int, list] = {}
            computed: list = []  # the tile under way

            def write():
                while computed:
                    tiles, r, c = computed.pop()
                    self._write(out, tiles, r, c, size)
                    advance()

            for sweep in range(0, len(starts), blocks.held):
                own = starts[sweep : sweep + blocks.held]
                columns: Any = None
                write()
                held.clear()  # before the next ones are made
                held |= {start: self._factors(self.rows, start, blocks) for start in own}
                for c in column_starts:
                    if symmetric and c < own[0]:
                        continue
                    if symmetric and c in held:
                        columns = held[c]
                    else:
                        write()
                        columns = None  # before the next ones are made
                        columns = columns_of(c)
                    for r in own:
                        if symmetric and r > c:
                            continue
                        following = self._tile(held[r], columns, symmetric and r == c, size), r, c
                        write()  # the one before, while this one is computed
                        computed.append(following)
            write()
        return out

    def _tile(self, rows: list, columns: list, diagonal: bool, size: int) -> list[jax.Array]:
        """One tile of each kernel."""
        key = ("whole", self.shape(size, size), tuple(way.key for way in self.rows.ways))
        run = self._compiled(key, functools.partial(_contract, self.gram, self.shape(size, size)))
        return run([[rows]] if diagonal else [[rows], [columns]], self.weights, [])

    def _write(self, out: list[np.ndarray], tiles: list[jax.Array], r: int, c: int, size: int) -> None:
        """Write a tile, and its mirror image, into the results."""
        contraction = self.gram.contraction
        axis = 2 if contraction == "full" else 1
        for whole, tile in zip(out, tiles, strict=True):
            n, m = min(size, whole.shape[0] - r), min(size, whole.shape[axis] - c)
            tile = np.broadcast_to(np.asarray(tile), self.shape(size, size))
            tile = tile[:n, :, :m] if axis == 2 else tile[:n, :m]
            at = lambda a, b, axis=axis: (a, slice(None), b) if axis == 2 else (a, b)
            whole[at(slice(r, r + n), slice(c, c + m))] = tile
            if self.columns is None and r != c:
                whole[at(slice(c, c + m), slice(r, r + n))] = mirrored(tile, contraction)

    def _blocks(self, side: Side, ways: tuple[Way, ...], step: int) -> list[list]:
        """Factors of all examples in consecutive blocks."""
        size = self._block_size(side, step)
        return [
            self._joined(side, self._steps(side, ways, start, min(size, side.n - start), step))
            for start in range(0, side.n, size)
        ]

    def _block_size(self, side: Side, step: int) -> int:
        """Examples of a block: those of a step, or of more where that would be too many blocks."""
        return step * math.ceil(side.n / step / _MOST_BLOCKS)

    def _shapes(self, side: Side, ways: tuple[Way, ...], step: int) -> list[list]:
        """Shapes of what `_blocks` returns."""
        size = self._block_size(side, step)
        one, _ = side.program.compiled_factors(ways, self.single).shapes(*self._step(side, step))
        counts = [math.ceil(min(size, side.n - start) / step) for start in range(0, side.n, size)]
        return [jax.eval_shape(_join, [one] * count) for count in counts]

    def _step(self, side: Side, step: int) -> tuple:
        """Arguments of the compiled factors of a step, the examples as shapes."""
        x = jax.eval_shape(functools.partial(_examples, start=0, size=step, n=side.n), side.x)
        return self.params, self._basis(side), keywords.arrays(self._kwargs(side)), x

    def _kwargs(self, side: Side) -> dict:
        return self.kwargs if side.kwargs is None else side.kwargs

    def _factors(self, side: Side, start: int, blocks: planning.Blocks) -> list:
        """Factors of one block of examples, as long as every other block."""
        return self._joined(side, self._steps(side, side.ways, start, blocks.size, blocks.step), blocks.size)

    def _joined(self, side: Side, steps: list[list], n: int | None = None) -> list:
        """The factors of (the first n examples of) consecutive steps as one."""
        if len(steps) == 1:
            return steps[0]
        return side.program.compiled(("join", n), functools.partial(_join, n=n))(steps)

    def _steps(self, side: Side, ways: tuple[Way, ...], start: int, size: int, step: int) -> list[list]:
        """Factors of examples start to start + size, step by step; the last ones repeat to fill the last step."""
        run = side.program.compiled_factors(ways, self.single)
        kwargs = keywords.arrays(self._kwargs(side))
        basis = self._basis(side)
        outcomes = []
        in_flight = Machine.here().in_flight
        for first in range(start, start + size, step):
            if len(outcomes) >= in_flight:
                jax.block_until_ready(outcomes[-in_flight])
            block = _examples(side.x, first, step, side.n)
            outcomes.append(run(self.params, basis, kwargs, block))
        if self.check and not side.program.verified and min(size, side.n) > 1:
            n = min(size, side.n - start)
            alone = np.concatenate([np.broadcast_to(y, (step, y.shape[-1])) for _, y in outcomes])[:n]
            block = _examples(side.x, start, n, side.n)
            outputs = side.program.compiled_outputs(side.f, self._kwargs(side))
            interaction.check_independent(outputs(self.params, block, kwargs), alone, self.call)
            side.program.verified = True
        return [factors for factors, _ in outcomes]

    @property
    def single(self) -> bool:
        """Whether all parts are added up as they are."""
        return self.gram.n_groups == 1 and self.weights is None

    def _compiled(self, key: tuple, function: Callable, donate: int | None = None) -> Compiled:
        """A contraction, compiled once per program, ways and shape."""
        return self.rows.program.compiled((*key, self.gram), function, donate=donate)


def _examples(x: Any, start: int, size: int, n: int) -> Any:
    """Examples start to start + size of n, the last one again and again beyond the end."""
    if start == 0 and size == n:
        return x
    short = start + size - n
    if short <= 0:
        return jax.tree.map(lambda v: v[start : start + size], x)
    repeat = lambda v: jnp.concatenate([v[min(start, n - 1) :], jnp.repeat(v[-1:], min(short, size - 1), axis=0)])
    return jax.tree.map(repeat, x)


def _named(ways: tuple[Way, ...], like: tuple[Way, ...]) -> tuple[Way, ...]:
    """The same parts contracted like those of the other side."""
    return tuple(dataclasses.replace(way, name=other.name) for way, other in zip(ways, like, strict=True))


def _join(blocks: list[list], n: int | None = None) -> list:
    """The factors of (the first n) examples of consecutive blocks."""
    return [join(list(part), n) for part in zip(*blocks, strict=True)]


def _contract(gram: Gram, shape: tuple[int, ...], sides: list, weights: list | None, shares: list) -> list[jax.Array]:
    """The kernels of rows with themselves, or with columns, from blocks of their factors and shares of pieces."""
    n, m = shape[0], shape[2 if gram.contraction == "full" else 1]
    rows = _join(sides[0], n)
    if len(sides) == 1:
        return gram.symmetric(rows, shape, weights, shares)
    tiles = gram(rows, _join(sides[1], m), weights, [share[0] for share in shares])
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
    """Add one share of the pieces of a part that is formed while it is contracted."""
    row, *column = (Stream.of(blocks, n, cut) for blocks, n in _lengths(gram, shape, sides))
    return gram.stream(totals, row, column[0] if column else None, shape, turn, turns)


def _lengths(gram: Gram, shape: tuple[int, ...], sides: list) -> list[tuple[list, int]]:
    """For rows (and columns): the blocks of a part and the number of examples."""
    lengths = (shape[0], shape[2 if gram.contraction == "full" else 1])
    return list(zip(sides, lengths, strict=False))
