"""One kernel to compute: everything checked, the ways chosen, ready to run inline, jointly, or in blocks."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.kernels import interaction, keywords
from ntkdiag.kernels import plan as planning
from ntkdiag.kernels.arguments import is_traced
from ntkdiag.kernels.gram import Gram, mirrored
from ntkdiag.kernels.program import Program
from ntkdiag.kernels.progress import bar
from ntkdiag.kernels.reduction import Reduction
from ntkdiag.kernels.ways import Way
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
        with bar(n_tiles, progress) as advance:
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
        kwargs = keywords.arrays(self.kwargs if side.kwargs is None else side.kwargs)
        factors, alone = run(self.params, self._basis(side), kwargs, block)
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
    return jax.enable_x64(True) if dot.name == "float64" else contextlib.nullcontext()
