"""One kernel to compute: everything checked, the ways chosen, ready to run inline, jointly, or in blocks."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.kernels import groups as grouping
from ntkdiag.kernels import interaction
from ntkdiag.kernels import plan as planning
from ntkdiag.kernels.arguments import is_traced
from ntkdiag.kernels.gram import Gram, mirrored
from ntkdiag.kernels.preconditioner import Preconditioner
from ntkdiag.kernels.program import Program, dynamic_arguments
from ntkdiag.kernels.reduction import Reduction
from ntkdiag.kernels.ways import Way, choose
from ntkdiag.tangents.precision import Precision


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
        """Output directions."""
        if self.rows.program.joint:
            return jnp.eye(self.rows.program.tangents.n_outputs, dtype=self.rows.program.tangents.dtype)
        return self.reduction.basis(self.rows.program.tangents.dtype)

    def plan(self, budget: int) -> planning.Plan:
        """The plan within a budget."""
        m = self.columns.n if self.columns else 0
        side = self.rows
        return planning.make(side.program, side.ways, self.basis, self.reduction, side.n, m, budget, self.call)

    def shape(self, n: int, m: int) -> tuple[int, ...]:
        """Shape of a tile."""
        return self.reduction.tile_shape(n, m)

    def run(self, budget: int, progress: bool) -> list[Any]:
        """The kernels of all groups, before the reduction is finished."""
        if self.rows.program.joint:
            return self._jointly()
        everything = (self.params, self.rows.x, self.columns and self.columns.x, self.kwargs, self.weights)
        if is_traced(everything):
            return self._inline()
        blocks = self.plan(budget).blocks
        with _precision_context(self.gram.dot):
            return self._whole() if blocks.whole else self.in_blocks(blocks, progress)

    def _inline(self) -> list[Any]:
        """As one block, inside a caller's trace."""
        factors = lambda side: side.program.factors(side.ways, self.params, self.basis, self.kwargs, side.x)[0]
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
            outputs = side.program.tangents.n_outputs
            basis = jnp.eye(outputs, dtype=side.program.tangents.dtype)
            return run(self.params, basis, self.kwargs, side.x)[0]

        rows = factors(self.rows)
        columns = rows if self.columns is None else factors(self.columns)
        n, m, c = self.rows.n, (self.columns or self.rows).n, self.reduction.n_outputs
        basis = self.reduction.basis(self.rows.program.tangents.dtype)
        results = []
        for k in self.gram(rows, columns, self.weights):
            k = jnp.broadcast_to(k, (1, n * c, 1, m * c)).reshape(n, c, m, c)
            k = jnp.einsum("ko,nomp,lp->nkml", basis, k, basis, precision="highest")
            k = (k + jnp.transpose(k, (2, 3, 0, 1))) / 2 if self.columns is None else k
            pattern = {"full": "nkml->nkml", "trace": "nkmk->nm", "diagonal": "nkmk->nmk"}
            results.append(jnp.einsum(pattern[self.reduction.contraction], k))
        return results

    def _whole(self) -> list[Any]:
        """As one block, compiled."""
        rows = self._factors(self.rows, 0, self.rows.n)
        if self.columns is None:
            return self._compiled("symmetric", self.shape(self.rows.n, self.rows.n))(rows, weights=self.weights)
        columns = self._factors(self.columns, 0, self.columns.n)
        tiles = self._compiled("tile")(rows, columns, weights=self.weights)
        return [jnp.broadcast_to(tile, self.shape(self.rows.n, self.columns.n)) for tile in tiles]

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
                factors = self._factors(self.columns or self.rows, start, size)
                if not (blocks.holds_columns and not symmetric):
                    return factors
                kept[start] = factors
            return kept[start]

        n_tiles = len(starts) * (len(starts) + 1) // 2 if symmetric else len(starts) * len(column_starts)
        with _bar(n_tiles, progress) as advance:
            for sweep in range(0, len(starts), blocks.held):
                own = starts[sweep : sweep + blocks.held]
                held = {start: self._factors(self.rows, start, size) for start in own}
                for c in column_starts:
                    if symmetric and c < own[0]:
                        continue
                    columns = held[c] if symmetric and c in held else columns_of(c)
                    for r in own:
                        if symmetric and r > c:
                            continue
                        self._tile(out, held[r], columns, r, c, size)
                        advance()
        return out

    def _tile(self, out: list[np.ndarray], rows: list, columns: list, r: int, c: int, size: int) -> None:
        """Compute one tile and write it, and its mirror image, into the results."""
        symmetric = self.columns is None
        if symmetric and r == c:
            tiles = self._compiled("symmetric", self.shape(size, size))(rows, weights=self.weights)
        else:
            tiles = self._compiled("tile")(rows, columns, weights=self.weights)
        contraction = self.gram.contraction
        axis = 2 if contraction == "full" else 1
        for whole, tile in zip(out, tiles, strict=True):
            n, m = min(size, whole.shape[0] - r), min(size, whole.shape[axis] - c)
            tile = np.broadcast_to(np.asarray(tile), self.shape(size, size))
            tile = tile[:n, :, :m] if axis == 2 else tile[:n, :m]
            at = lambda a, b, axis=axis: (a, slice(None), b) if axis == 2 else (a, b)
            whole[at(slice(r, r + n), slice(c, c + m))] = tile
            if symmetric and r != c:
                whole[at(slice(c, c + m), slice(r, r + n))] = mirrored(tile, contraction)

    def _factors(self, side: Side, start: int, size: int) -> list:
        """Factors of examples start to start + size; a short block is padded, to keep one compiled shape."""
        stop = min(start + size, side.n)
        block = side.x if size >= side.n else jax.tree.map(lambda v: v[start:stop], side.x)
        short = size - (stop - start)
        if short and side.n > size:
            repeat = lambda v: jnp.concatenate([v, jnp.repeat(v[-1:], short, axis=0)])
            block = jax.tree.map(repeat, block)
        run = side.program.compiled_factors(side.ways)
        kwargs = dynamic_arguments(self.kwargs if side.kwargs is None else side.kwargs)
        factors, alone = run(self.params, self.basis, kwargs, block)
        if self.check and not side.program.verified and alone.shape[0] > 1:
            interaction.check_independent(side.f, self.params, block, self.kwargs, alone, self.call)
            side.program.verified = True
        return factors

    def _compiled(self, what: str, shape: tuple[int, ...] | None = None) -> Callable:
        """The Gram, compiled once per program, ways and shape."""
        key = (what, shape, self.gram, tuple(way.key for way in self.rows.ways))
        return self.rows.program.compiled(
            key, self.gram if what == "tile" else functools.partial(_symmetric, self.gram, shape)
        )


def _symmetric(gram: Gram, shape: Any, factors: list, weights: list | None) -> list[jax.Array]:
    return gram.symmetric(factors, shape, weights)


def _precision_context(dot: Precision) -> Any:
    """float64 products need the 64-bit mode of JAX, whatever the caller's mode is."""
    return jax.enable_x64(True) if dot.name == "float64" else _nothing()


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


class _bar:
    """A progress bar over tiles, or nothing."""

    def __init__(self, total: int, show: bool):
        self.total, self.show = total, show

    def __enter__(self) -> Callable[[], None]:
        if not self.show:
            return lambda: None
        from rich.progress import Progress

        self.progress = Progress(transient=True)
        self.progress.start()
        task = self.progress.add_task("NTK tiles", total=self.total)
        return lambda: self.progress.advance(task)

    def __exit__(self, *_: Any) -> None:
        if self.show:
            self.progress.stop()


def make(
    f: Callable,
    f2: Callable | None,
    params: Any,
    x1: Any,
    x2: Any,
    kwargs: dict,
    *,
    outputs: Any,
    sizes: tuple[int, int],
    joint: bool,
    per_leaf: Any,
    preconditioner: Preconditioner,
    dot: Precision,
    check: bool,
    call: str,
) -> Task:
    """Trace what has to be traced and choose how every part is contracted."""
    n, m = sizes
    program = Program.of(f, params, x1, kwargs, joint=joint, call=call)
    reduction = Reduction.of(outputs, program.tangents.n_outputs // (n if joint else 1))
    second = None if f2 is None and x2 is None else (f2 or f, x1 if x2 is None else x2)
    other = second and Program.of(second[0], params, second[1], kwargs, joint=joint, call=call)
    form = "leaf order" if f2 is not None or preconditioner.kind == "elementwise" else "by leaf"
    form = "fused" if form == "by leaf" and not per_leaf and preconditioner.kind in ("none", "scalar") else form
    contraction, k = reduction.contraction, reduction.n_directions
    if joint:
        contraction, k = "full", program.tangents.n_outputs
    parts = program.tangents.parts(form)
    if f2 is not None and other:
        shared = {part.leaves for part in parts} & {part.leaves for part in other.tangents.parts(form)}
        parts = [part for part in parts if part.leaves in shared]
    ways = choose(parts, 1 if joint else n, 0 if other is None else (1 if joint else m), k, contraction)
    columns = None
    if second and other:
        columns = Side(second[0], other, second[1], m, _same_ways(ways, other, form))
    names = grouping.leaf_names(ways, program.paths, program.tangents.stacked) if per_leaf else []
    groups, keys = grouping.group(names, per_leaf, call) if per_leaf else (_one_group(ways), [])
    weights = None
    if preconditioner.inverse is not None:
        weights = [preconditioner.inverse[way.part.leaves[0]] for way in ways for _ in range(_n_factors(way))]
    gram = Gram(contraction, dot, groups, max(1, len(keys)))
    rows = Side(f, program, x1, n, ways)
    return Task(rows, columns, params, kwargs, reduction, gram, keys, weights, check, call)


def _n_factors(way: Way) -> int:
    """A weight and its bias are two factors once they are formed."""
    return 2 if way.name == "dense" and way.part.ones else 1


def _one_group(ways: tuple[Way, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple((0,) for way in ways for _ in range(_n_factors(way)))


def _same_ways(ways: tuple[Way, ...], program: Program, form: str) -> tuple[Way, ...]:
    """The ways of the rows for the parts of the columns."""
    by_leaves: dict[tuple, Iterator] = {}
    parts = program.tangents.parts(form)
    for part in parts:
        by_leaves.setdefault(part.leaves, iter([p for p in parts if p.leaves == part.leaves]))
    return tuple(dataclasses.replace(way, part=next(by_leaves[way.part.leaves])) for way in ways)
