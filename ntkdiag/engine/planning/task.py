"""A kernel to compute: both sides traced, and how every part of their Jacobians is contracted.

    K = sum over parts l of  J_l(rows) P_l^-1 J_l(columns)^T

    Task        the call, the reduction, which kernel each part is added to, the weights 1/P
    KernelSide  rows or columns: examples, program, directions, a way of contracting every part

The kernel is a sum over parts of the Jacobian. Between two functions, or two shapes of examples,
the parts have to be the same parameters in the same coordinates: where the structures differ, every
leaf is one part, its Jacobian formed in the order of the leaf, and a leaf that only one side uses
adds nothing.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.engine.calls.call import Batch, Call
from ntkdiag.engine.contracting.contraction_methods import Way, choose
from ntkdiag.engine.contracting.gram import Gram, Tile
from ntkdiag.engine.jacobian.parts import Part
from ntkdiag.engine.planning.leaf_groups import LeafGroups, names_of
from ntkdiag.engine.tracing.program import Form, Program
from ntkdiag.jaxtools.compiling import Compiled
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.jaxtools.tracing import committed, is_traced
from ntkdiag.kernel.reduction import (
    Contraction,
    Directions,
    KernelArray,
    Reduction,
    automatic,
)


@dataclasses.dataclass(frozen=True, eq=False)
class KernelSide:
    """Rows or columns, ready to be differentiated."""

    batch: Batch  # function and examples
    program: Program  # the function, traced
    ways: tuple[Way, ...]  # how the parts of its Jacobian are contracted
    directions: Directions  # output directions it is differentiated along

    @property
    def n(self) -> int:
        """Number of examples."""
        return self.batch.n

    @functools.cached_property
    def basis(self) -> Float[Array | np.ndarray, "k C"]:
        """The directions as rows of an array."""
        return self.directions.basis(self.program.jacobian.dtype)

    @property
    def basis_shape(self) -> jax.ShapeDtypeStruct:
        """Shape of `basis`."""
        shape = self.directions.n, self.directions.n_outputs
        return jax.ShapeDtypeStruct(shape, self.program.jacobian.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A kernel to compute."""

    call: Call  # parameters and options
    rows: KernelSide  # the row examples
    columns: KernelSide | None  # the column examples; None where they are the rows
    reduction: Reduction  # over outputs
    gram: Gram  # which products are taken, and which kernel each is added to
    names: tuple[str, ...]  # of the kernels of groups of leaves; empty for one kernel
    weights: list[Float[Array, "..."]] | None  # 1/P for every factor; None without preconditioner
    dtype: np.dtype  # of the kernel

    @staticmethod
    def of(call: Call, rows: Program, columns: Program | None) -> "Task":
        """Choose how every part is contracted."""
        # 1. How every part is contracted.
        reduction = _reduction(call, rows, columns)
        ways_of_rows, ways_of_columns = _matching_ways(call, rows, columns, reduction)

        # 2. Which kernel its product is added to, and with which weight.
        parts = [way.part for way in ways_of_rows]
        groups = LeafGroups(names=(), of_parts=((0,),) * len(parts))  # everything is added up
        if call.options.per_leaf:
            names = names_of(parts, rows.paths, rows.jacobian.stacked_leaves)
            groups = LeafGroups.of(names, call.options.per_leaf)
        # A part has the weight of its leaf. Where leaves have different ones, the form of the parts
        # (`_form`) is such that each is of one leaf.
        inverse = call.preconditioner.inverse
        weights = None if inverse is None else [inverse[part.leaves[0]] for part in parts]
        gram = Gram(
            contraction="full" if call.joint else reduction.contraction,
            precision=call.options.precision,
            groups=groups.of_parts,
            n_groups=max(1, len(groups.names)),
        )

        # 3. Both sides, ready to be differentiated.
        side_of_rows = KernelSide(call.rows, rows, ways_of_rows, _directions(rows, reduction.rows))
        side_of_columns = None
        if columns is not None and call.columns is not None:
            directions = _directions(columns, reduction.columns)
            side_of_columns = KernelSide(call.columns, columns, ways_of_columns, directions)

        # The kernel has the wider dtype of the two.
        outputs = [program.jacobian.dtype for program in (rows, columns) if program is not None]
        return Task(
            call=call,
            rows=side_of_rows,
            columns=side_of_columns,
            reduction=reduction,
            gram=gram,
            names=groups.names,
            weights=weights,
            dtype=at_least_float32(jnp.result_type(*outputs)),
        )

    @property
    def sides(self) -> list[KernelSide]:
        """Rows, and columns where they are others."""
        return [self.rows] if self.columns is None else [self.rows, self.columns]

    @property
    def m(self) -> int:
        """Number of column examples."""
        return self.rows.n if self.columns is None else self.columns.n

    @property
    def is_plain_sum(self) -> bool:
        """Whether all products are added up as they are: no groups, no weights."""
        return self.gram.n_groups == 1 and self.weights is None

    @functools.cached_property
    def traced(self) -> bool:
        """Whether this is inside someone's trace: what is computed is part of their program."""
        if any(side.program.closes_over_tracers for side in self.sides):
            return True
        return is_traced(self.call)

    @functools.cached_property
    def placed(self) -> bool:
        """Whether somebody chose the devices, and not JAX its default one."""
        default = jax.config.jax_default_device  # type: ignore[attr-defined]
        return default is not None or committed(self.call)

    def finish(self, array: KernelArray) -> tuple[KernelArray, KernelArray | None]:
        """What `run` gives as the reduction says: (kernel, standard error or None)."""
        if array.dtype != self.dtype:  # the zeros of a kernel of no part
            array = array.astype(self.dtype)
        return self.reduction.finish(array)

    def tile(self, n: int, m: int) -> Tile:
        """The kernel of n by m examples, before the reduction is finished."""
        return Tile.of(self.reduction, n, m)

    def compiled(
        self, key: tuple[Hashable, ...], function: Callable[..., PyTree], donate: int | None = None
    ) -> Compiled:
        """A contraction, compiled once per program, ways and shape."""
        return self.rows.program.compiled((*key, self.gram), function, donate=donate)


def cheapest_ways(
    program: Program,
    form: Form,
    n: int,
    m: int,
    k: int,
    contraction: Contraction,
) -> tuple[Way, ...]:
    """The cheapest ways for n by m examples (0: the rows) and k directions; see `ways.choose`."""
    return program.keep(
        ("ways", form, n, m, k, contraction),
        lambda: choose(program.parts(form), n, m, k, contraction),
    )


def _reduction(call: Call, rows: Program, columns: Program | None) -> Reduction:
    """The reduction over the outputs of these functions."""
    n_outputs = _n_outputs(rows, call.rows)
    reduction = call.options.reduction
    if isinstance(reduction, str) and reduction == "auto":
        reduction = automatic(call.rows.n, n_outputs)
    if columns is None or call.columns is None:
        return Reduction.of(reduction, n_outputs)
    return Reduction.of(reduction, n_outputs, _n_outputs(columns, call.columns))


def _n_outputs(program: Program, batch: Batch) -> int:
    """Outputs of one example; a joint batch is differentiated as one example with all of them."""
    if program.joint:
        return program.jacobian.n_outputs // batch.n
    return program.jacobian.n_outputs


def _directions(program: Program, directions: Directions) -> Directions:
    """The directions a side is differentiated along; a joint batch along all its outputs."""
    if not program.joint:
        return directions
    return Directions(program.jacobian.n_outputs, program.jacobian.n_outputs)


def _matching_ways(
    call: Call, rows: Program, columns: Program | None, reduction: Reduction
) -> tuple[tuple[Way, ...], tuple[Way, ...]]:
    """How the parts of the rows are contracted, and those of the columns in the same order."""
    form = _form(call)
    # One function at one shape: rows and columns are the same program.
    if columns is None or columns is rows:
        ways = _ways(call, rows, form, reduction)
        return ways, ways

    # Two programs: parts are paired by what they are coordinates of.
    if _by_coordinates(rows, form).keys() != _by_coordinates(columns, form).keys():
        # The columns use some parameter in another way.
        form = "leaf order"
    ways = _ways(call, rows, form, reduction)
    parts_of_columns = _by_coordinates(columns, form)
    ways_of_rows = []
    ways_of_columns = []
    for way, coordinates in zip(ways, _by_coordinates(rows, form), strict=True):
        part = parts_of_columns.get(coordinates)
        if part is not None:  # a leaf that only one side uses adds nothing
            ways_of_rows.append(way)
            ways_of_columns.append(dataclasses.replace(way, part=part))
    return tuple(ways_of_rows), tuple(ways_of_columns)


def _form(call: Call) -> Form:
    """The coarsest form of the parts that groups and preconditioner allow."""
    kind = call.preconditioner.kind
    if kind == "elementwise":  # a weight for every column of J: they stand as in the leaf
        return "leaf order"
    # A kernel, or a weight, for every leaf: no part may have two of them.
    if call.options.per_leaf or kind == "per leaf":
        return "by leaf"
    return "fused"


def _by_coordinates(program: Program, form: Form) -> dict[tuple, Part]:
    """Parts by their coordinates, in order: equal ones have factors that can be multiplied."""
    return program.keep(
        ("coordinates", form),
        lambda: {part.coordinates: part for part in program.parts(form)},
    )


def _ways(call: Call, program: Program, form: Form, reduction: Reduction) -> tuple[Way, ...]:
    """The cheapest ways for all parts of the rows."""
    n_columns = 0 if call.columns is None else call.columns.n
    if program.joint:
        # The batch is one example; the full kernel of all its outputs is reduced afterwards.
        k = program.jacobian.n_outputs
        return cheapest_ways(program, form, 1, min(n_columns, 1), k, "full")
    k = reduction.rows.n
    return cheapest_ways(program, form, call.rows.n, n_columns, k, reduction.contraction)
