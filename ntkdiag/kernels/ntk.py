"""The empirical neural tangent kernel."""

import hashlib
import itertools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.kernels import arguments, interaction
from ntkdiag.kernels import memory as budgets
from ntkdiag.kernels.convention import Convention
from ntkdiag.kernels.gram import gram, symmetric_gram
from ntkdiag.kernels.kernel import Kernel
from ntkdiag.kernels.program import Program
from ntkdiag.kernels.reduction import Reduction
from ntkdiag.kernels.tiles import Blocks, bytes_per_example
from ntkdiag.kernels.ways import choose


def ntk(
    f: Callable,
    params: Any,
    x1: Any,
    x2: Any = None,
    *,
    outputs: Any = "mean",
    memory: int | float | str | None = None,
    examples: Literal["independent", "joint"] = "independent",
    check: bool = True,
    progress: bool = False,
    **kwargs: Any,
) -> Kernel:
    """The empirical neural tangent kernel of f at params.

    K[n,o,m,p] = sum_l <d f(x1_n)_o / d theta_l, d f(x2_m)_p / d theta_l>, reduced over outputs as `outputs` says.

    Each example is differentiated once (one forward, and one backward pass per output direction) when its factors fit
    in the budget; x2=None computes one triangle. Works inside `jax.jit`, where the whole kernel is one block.

    Args:
        f: `f(params, x, **kwargs)`; its outputs (an array or a pytree of them) have the example axis first.
        params: Pytree of real floating arrays.
        x1: Row examples: an array or pytree of arrays with the example axis first.
        x2: Column examples; None stands for x1.
        outputs: "mean" (default), "trace", "full", "diagonal", "sum-of-logits", or a projection of shape [C k]; see
            `Convention`.
        memory: Budget in bytes, or as "2GB"; None is half of what is free.
        examples: "independent", or "joint" where examples interact (BatchNorm in train mode): the batch is then
            differentiated as a whole.
        check: Verify that parameters are finite and, on the first call, that independent examples are independent.
        progress: Show a progress bar when there is more than one block.
        **kwargs: Handed to f; arrays are shared by all examples.

    Returns:
        A `Kernel` with array [n m], or [n o m p] (full, projection), or [n m o] (diagonal).

    Raises:
        InvalidInputError: Parameters, inputs, outputs or `outputs=` are not as described.
        ExamplesInteractError: Examples interact and `examples="joint"` was not asked for.
        MemoryBudgetError: The budget is too small for a single pair of examples.

    Cost: N C backward passes; N^2 C^2 (full) or N^2 C (trace) times the summed factor widths multiply-adds.

    Source: Jacot et al. 2018, arXiv:1806.07572; structured contraction as in Novak et al. 2022, arXiv:2206.08720, here
    through scan and checkpoint and chosen for each parameter.

    Example:
        >>> import jax.numpy as jnp, ntkdiag
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> K = ntkdiag.ntk(lambda w, x: x @ w, jnp.ones((2, 3)), x)
        >>> bool(jnp.allclose(K.array, x @ x.T))
        True
    """
    call = "ntk(f, params, x1)" if x2 is None else "ntk(f, params, x1, x2)"
    arguments.check_params(params, call, finite=check)
    params, x1, x2, kwargs = jax.tree.map(_as_array, (params, x1, x2, kwargs))
    n = arguments.batch_size(x1, call, "x1")
    m = n if x2 is None else arguments.batch_size(x2, call, "x2")
    joint = examples == "joint"
    programs = [Program.of(f, params, x, kwargs, joint=joint, call=call) for x in ([x1] if x2 is None else [x1, x2])]
    n_outputs = programs[0].tangents.n_outputs // (n if joint else 1)
    reduction = Reduction.of(outputs, n_outputs)
    convention = Convention(
        outputs=reduction.name,  # type: ignore[arg-type]
        n_outputs=n_outputs,
        examples=examples,
        mode=getattr(f, "mode", "unspecified"),
        probe=None if arguments.is_traced(x1) else _digest(x1),
    )
    task = _Task(f, params, x1, x2, kwargs, programs, reduction, n, m, call, check)
    if joint:
        array = task.jointly()
    elif arguments.is_traced(params, x1, x2, kwargs):
        array = task.inline()
    else:
        array = task.in_blocks(budgets.budget(memory), progress)
    return Kernel(array, convention, x2 is None)


class _Task:
    """One kernel to compute, with everything checked."""

    def __init__(self, f, params, x1, x2, kwargs, programs, reduction, n, m, call, check):
        self.f, self.params, self.x1, self.x2, self.kwargs, self.call, self.check = (
            f,
            params,
            x1,
            x2,
            kwargs,
            call,
            check,
        )
        self.n, self.m, self.reduction = n, m, reduction
        self.row_program, self.column_program = programs[0], programs[-1]
        self.basis = reduction.basis(programs[0].tangents.dtype)
        joint = programs[0].joint
        k, contraction = (n * reduction.n_outputs, "full") if joint else (reduction.n_directions, reduction.contraction)
        pairs = (1, 1) if joint else (n, 0 if x2 is None else m)
        self.ways = choose(programs[0].tangents, pairs[0], max(pairs[1], 1), k, contraction)
        self.names = tuple(way.name for way in self.ways)

    def inline(self) -> jax.Array:
        """As one block, inside a caller's trace."""
        rows, _ = self.row_program.factors(self.names, self.params, self.basis, self.kwargs, self.x1)
        contraction = self.reduction.contraction
        if self.x2 is None:
            return self.reduction.finish(symmetric_gram(rows, contraction, self.reduction.tile_shape(self.n, self.n)))
        columns, _ = self.column_program.factors(self.names, self.params, self.basis, self.kwargs, self.x2)
        tile = gram(rows, columns, contraction)
        return self.reduction.finish(jnp.broadcast_to(tile, self.reduction.tile_shape(self.n, self.m)))

    def jointly(self) -> jax.Array:
        """Each batch differentiated as one example with N C outputs, then reduced."""

        def whole(program, x):
            basis = jnp.eye(program.tangents.n_outputs, dtype=program.tangents.dtype)
            run = program.factors if arguments.is_traced(self.params, x) else None
            args = (self.params, basis, self.kwargs, x)
            return run(self.names, *args)[0] if run else program.compiled_factors(self.names)(*args)[0]

        rows = whole(self.row_program, self.x1)
        columns = rows if self.x2 is None else whole(self.column_program, self.x2)
        c = self.reduction.n_outputs
        k = gram(rows, columns, "full").reshape(self.n, c, self.m, c)
        k = jnp.einsum("ko,nomp,lp->nkml", self.basis, k, self.basis, precision="highest")
        if self.x2 is None:
            k = (k + jnp.transpose(k, (2, 3, 0, 1))) / 2
        pattern = {"full": "nkml->nkml", "trace": "nkmk->nm", "diagonal": "nkmk->nmk"}[self.reduction.contraction]
        return self.reduction.finish(jnp.einsum(pattern, k))

    def in_blocks(self, budget: int, progress: bool) -> Any:
        """Block by block within the budget; the result lies on the host unless one block does it all."""
        itemsize = jnp.dtype(self.row_program.tangents.dtype).itemsize
        shape = self.reduction.tile_shape(self.n, self.m)
        output = int(np.prod(shape)) * itemsize
        pair = output // (self.n * self.m)
        taps = self.row_program.tangents.tap_avals.values()
        k = self.reduction.n_directions
        working = 2 * (k + 1) * sum(int(np.prod(t.shape)) * t.dtype.itemsize for t in taps)
        per_example = bytes_per_example(self.ways, itemsize)
        blocks = Blocks.plan(self.n, self.m, per_example, working, pair, output, budget, self.call)
        if blocks.rows >= self.n and blocks.columns >= self.m:
            return self.reduction.finish(self._one_block())
        return self.reduction.finish(self._many_blocks(blocks, shape, progress))

    def _factors(self, program: Program, x: Any, start: int, size: int) -> list:
        """Factors of examples start to start + size, padded by the last example to keep one compiled shape."""
        total = jax.tree.leaves(x)[0].shape[0]
        stop = min(start + size, total)
        block = jax.tree.map(lambda v: v[start:stop], x)
        if stop - start < size and total > size:
            pad = size - (stop - start)
            block = jax.tree.map(lambda v: np.concatenate([np.asarray(v), np.asarray(v[-1:]).repeat(pad, 0)]), block)
        factors, alone = program.compiled_factors(self.names)(self.params, self.basis, self.kwargs, block)
        if self.check and not program.verified:
            if alone.shape[0] > 1 or size > 1:
                interaction.check_independent(self.f, self.params, block, self.kwargs, alone, self.call)
                program.verified = True
        return factors

    def _one_block(self) -> jax.Array:
        rows = self._factors(self.row_program, self.x1, 0, self.n)
        shape = self.reduction.tile_shape(self.n, self.m)
        if self.x2 is None:
            return self.row_program.compiled_gram(self.reduction.contraction, shape)(rows)
        columns = self._factors(self.column_program, self.x2, 0, self.m)
        tile = self.row_program.compiled_gram(self.reduction.contraction)(rows, columns)
        return jnp.broadcast_to(tile, shape)

    def _many_blocks(self, blocks: Blocks, shape: tuple[int, ...], progress: bool) -> np.ndarray:
        """Row blocks stay while column blocks pass by; with x2=None only columns from the row block on."""
        contraction = self.reduction.contraction
        axis = 2 if contraction == "full" else 1
        out = np.empty(shape, self.row_program.tangents.dtype)
        tile_of = self.row_program.compiled_gram(contraction)
        row_starts, column_starts = range(0, self.n, blocks.rows), range(0, self.m, blocks.columns)
        symmetric = self.x2 is None
        todo = [
            (r, c) for r, c in itertools.product(row_starts, column_starts) if not symmetric or c + blocks.columns > r
        ]
        held: tuple[int, list] = (-1, [])
        for r, c in _tracked(todo, progress):
            if held[0] != r:
                held = (-1, [])
                held = (r, self._factors(self.row_program, self.x1, r, blocks.rows))
            columns = self._factors(self.column_program, self.x1 if symmetric else self.x2, c, blocks.columns)
            tile = np.asarray(tile_of(held[1], columns))
            r_stop, c_stop = min(r + blocks.rows, self.n), min(c + blocks.columns, self.m)
            tile = np.broadcast_to(tile, self.reduction.tile_shape(blocks.rows, blocks.columns))
            tile = np.take(tile[: r_stop - r], range(c_stop - c), axis=axis)
            where = (slice(r, r_stop), *(slice(None),) * (axis - 1), slice(c, c_stop))
            out[where] = tile
            if symmetric:
                mirrored = (slice(c, c_stop), *(slice(None),) * (axis - 1), slice(r, r_stop))
                order = {"full": (2, 3, 0, 1), "trace": (1, 0), "diagonal": (1, 0, 2)}[contraction]
                out[mirrored] = tile.transpose(order)
        return out


def _tracked(todo: list, progress: bool) -> Any:
    if not progress:
        return todo
    from rich.progress import track

    return track(todo, description="NTK tiles")


def _as_array(leaf: Any) -> Any:
    """Numpy and Python numbers become arrays; everything that is no array (a flag, a name) is left alone."""
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _digest(x: Any) -> str:
    """SHA-256 of the probe batch: shapes, dtypes and bytes."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(x):
        array = np.ascontiguousarray(leaf)
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
