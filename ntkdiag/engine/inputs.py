"""One call of `ntk` or `plan`, read once: checked, traced, and every part given a way.

    K = sum over parts l of  J_l(rows) P_l^-1 J_l(columns)^T

The kernel is a sum over parts of the Jacobian. Between two functions, or two shapes of examples,
the parts have to be the same parameters in the same coordinates: where the structures differ, every
leaf is one part, its Jacobian formed in the order of the leaf, and a leaf that only one side uses
adds nothing.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import arrays, call_f, errors
from ntkdiag.engine.contraction import Gram, Tile, Way
from ntkdiag.engine.jacobian.parts import Form, Part
from ntkdiag.engine.program import Program
from ntkdiag.jaxtools import arguments
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.jaxtools.tracing import committed, in_the_trace, is_traced
from ntkdiag.kernel.preconditioner import Preconditioner
from ntkdiag.kernel.reduction import (
    Directions,
    KernelArray,
    Reduction,
    ReductionLike,
    automatic,
)

Examples = Literal["independent", "joint"]
Memory = int | float | str


class Batch(NamedTuple):
    """Rows or columns of a kernel: a function, and the examples at which it is differentiated."""

    f: Callable[..., PyTree]  # `f(params, x, **kwargs)`
    x: PyTree  # the examples: arrays with the example axis first
    kwargs: dict[str, Any]  # keyword arguments of f; arrays among them are shared by all examples
    n: int  # number of examples


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """Rows or columns, ready to be differentiated."""

    batch: Batch  # function and examples
    program: Program  # the function, traced
    directions: Directions  # output directions it is differentiated along
    ways: tuple[Way, ...]  # how the parts of its Jacobian are contracted

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
class Inputs:
    """A kernel to compute."""

    params: PyTree  # parameters of both functions
    n: int  # number of row examples
    m: int  # number of column examples
    sides: tuple[Side, ...]  # rows, and columns where they are others
    reduction: Reduction  # over outputs
    gram: Gram  # which products are taken, and which kernel each is added to
    names: tuple[str, ...]  # of the kernels of groups of leaves; empty for one kernel
    preconditioner: Preconditioner  # P
    weights: list[Float[Array, "..."]] | None  # 1/P for every factor; None without preconditioner
    dtype: np.dtype  # of the kernel
    joint: bool  # whether the batch is differentiated as a whole, because examples may interact
    check: bool  # whether it is verified that examples are independent
    memory: Memory | None  # budget as it was passed; None is half of what is free
    progress: bool | None  # whether to show how far it has come; see `ntkdiag.progress`
    most_examples: int | None  # largest number of examples of a tile; None for as many as fit
    # Whether this is inside someone's trace: what is computed is part of their program.
    in_a_trace: bool
    placed: bool  # whether the user chose the devices, instead of JAX's default

    @property
    def rows(self) -> Side:
        """The side of the row examples."""
        return self.sides[0]

    @property
    def symmetric(self) -> bool:
        """Whether the columns are the rows."""
        return len(self.sides) == 1

    @property
    def n_columns(self) -> int:
        """Number of column examples that are differentiated beside the rows; 0 for a triangle."""
        return 0 if self.symmetric else self.m

    @property
    def is_plain_sum(self) -> bool:
        """Whether all products are added up as they are: no groups, no weights."""
        return self.gram.n_groups == 1 and self.weights is None

    def tile(self, n: int, m: int) -> Tile:
        """The kernel of n by m examples, before the reduction is finished."""
        reduction = self.reduction
        return Tile(reduction.contraction, n, m, reduction.rows.n, reduction.columns.n)

    def finish(self, array: KernelArray) -> tuple[KernelArray, KernelArray | None]:
        """A kernel from `run`, reduced: (kernel, standard error or None)."""
        if array.dtype != self.dtype:  # the zeros of a kernel of no part
            array = array.astype(self.dtype)
        return self.reduction.finish(array)


def read(
    f: Callable[..., PyTree],
    params: PyTree,
    x: PyTree,
    x2: PyTree = None,
    *,
    f2: Callable[..., PyTree] | None = None,
    reduction: ReductionLike = "mean",
    per_leaf: bool | str | Sequence[str] = False,
    preconditioner: PyTree = None,
    memory: Memory | None = None,
    precision: str = "highest",
    examples: Examples | None = None,
    check: bool = True,
    progress: bool | None = None,
    **kwargs: Any,
) -> Inputs:
    """The arguments of `ntk`, checked and traced."""
    # Inside the user's jit a kernel is part of that program, even a kernel of constants.
    params, x, x2, preconditioner, kwargs = in_the_trace((params, x, x2, preconditioner, kwargs))

    # From here on all arrays are JAX arrays, with the dtypes that the session allows.
    params = arrays.with_arrays(params, "params")
    kwargs = arrays.with_arrays(kwargs, "kwargs")
    functions = [f]
    batches = {"x": arrays.as_examples(x, "x")}
    # With the same function and the same examples one triangle of the kernel is enough.
    if x2 is not None or f2 is not None:
        functions.append(f if f2 is None else f2)
        batches["x2"] = batches["x"] if x2 is None else arrays.as_examples(x2, "x2")

    # The function, the parameters and the options.
    for function in functions:
        arguments.check_function(function)
    arguments.check_params(params, finite=check)
    if examples is not None:
        arguments.check_choice(examples, ("independent", "joint"), "examples=...")
    joint = examples == "joint"
    if examples is None:
        joint = any(getattr(function, "joint", False) is True for function in functions)

    # The examples.
    sides = []
    for function, (name, batch) in zip(functions, batches.items(), strict=True):
        n = _count(function, params, batch, kwargs, name, joint)
        sides.append(Batch(function, batch, kwargs, n))
    if check:
        for name, batch in batches.items():
            arguments.check_no_nan(batch, name)

    # K = J P^-1 J^T: P is inverted once, here.
    inverse = None
    if preconditioner is not None:
        inverse = Preconditioner.of(arrays.with_arrays(preconditioner, "preconditioner"), params)
    return trace(
        params,
        sides,
        reduction=reduction,
        per_leaf=per_leaf,
        preconditioner=inverse,
        memory=memory,
        precision=precision,
        joint=joint,
        check=check,
        progress=progress,
    )


def _count(
    f: Callable[..., PyTree], params: PyTree, x: PyTree, kwargs: dict, name: str, joint: bool
) -> int:
    """The number of examples."""
    # Batches of graphs, which are joint, have axes of nodes, edges and graphs: there the rows
    # of what f returns are counted.
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(x)}
    if not joint or len(lengths) < 2:
        return arguments.batch_size(x, name)
    arguments.check_alive(x, name)
    with call_f.running():
        outputs = jax.tree.leaves(jax.eval_shape(functools.partial(f, **kwargs), params, x))
    # If there is no first axis, tracing f for its Jacobian raises the error.
    first_axes = [leaf.shape[0] for leaf in outputs if leaf.ndim]
    return first_axes[0] if first_axes else 1


def trace(
    params: PyTree,
    batches: Sequence[Batch],
    *,
    reduction: ReductionLike = "mean",
    per_leaf: bool | str | Sequence[str] = False,
    preconditioner: Preconditioner | None = None,
    memory: Memory | None = None,
    precision: str = "highest",
    joint: bool = False,
    check: bool = False,
    progress: bool | None = False,
    most_examples: int | None = None,
) -> Inputs:
    """Trace the functions of rows (and columns), and choose how every part is contracted."""
    preconditioner = preconditioner or Preconditioner("none", None)
    # 1. Each function becomes a program, which is found again for arguments of the same shapes.
    programs = [Program.of(b.f, params, b.x, b.kwargs, joint=joint) for b in batches]
    if not all(program.jacobian.sites or program.jacobian.dense_leaves for program in programs):
        arguments.warn_of_no_parameter()

    # 2. The reduction. A joint batch is one example with all outputs of the batch.
    n_outputs = [program.jacobian.n_outputs for program in programs]
    if joint:
        n_outputs = [n // batch.n for n, batch in zip(n_outputs, batches, strict=True)]
    if isinstance(reduction, str) and reduction == "auto":
        reduction = automatic(batches[0].n, n_outputs[0])
    reduced = Reduction.of(reduction, *n_outputs)
    directions = [reduced.rows, reduced.columns][: len(programs)]
    contraction = reduced.contraction
    n, m = batches[0].n, (batches[1].n if len(batches) == 2 else 0)
    if joint:
        # The full kernel of all its outputs is reduced afterwards.
        directions = [Directions(p.jacobian.n_outputs, p.jacobian.n_outputs) for p in programs]
        contraction = "full"
        n, m = 1, min(m, 1)

    # 3. How every part is contracted.
    form: Form = "fused"
    if preconditioner.kind == "elementwise":  # a weight for every column of J, in leaf order
        form = "leaf order"
    elif per_leaf or preconditioner.kind == "per leaf":
        form = "by leaf"  # a kernel, or a weight, for every leaf: no part may have two of them
    ways = _matching_ways(programs, form, (n, m, directions[0].n, contraction))

    # 4. Which kernel its product is added to, and with which weight. A part has the weight of its
    #    leaf: where leaves have different ones, each part is of one leaf.
    parts = [way.part for way in ways[0]]
    names: tuple[str, ...] = ()
    groups = [(0,)] * len(parts)  # all products are added
    rounds = [1] * len(parts)
    if per_leaf:
        stacked = programs[0].jacobian.stacked_leaves
        named = [_names_of(part, programs[0].paths, stacked) for part in parts]
        names, groups = _leaf_groups([of_part for of_part, _ in named], per_leaf)
        rounds = [n_rounds for _, n_rounds in named]
    weights = None
    if preconditioner.inverse is not None:
        weights = [preconditioner.inverse[part.leaves[0]] for part in parts]

    in_a_trace = any(program.closes_over_tracers for program in programs)
    handed_in = params, [(batch.x, batch.kwargs) for batch in batches], preconditioner.inverse
    in_a_trace = in_a_trace or is_traced(handed_in)
    default_device = jax.config.jax_default_device  # type: ignore[attr-defined]
    return Inputs(
        params=params,
        n=batches[0].n,
        m=batches[-1].n,
        sides=tuple(map(Side, batches, programs, directions, ways)),
        reduction=reduced,
        gram=Gram(contraction, precision, tuple(groups), tuple(rounds), len(names) or 1),
        names=names,
        preconditioner=preconditioner,
        weights=weights,
        # The wider dtype of the two.
        dtype=at_least_float32(jnp.result_type(*(p.jacobian.dtype for p in programs))),
        joint=joint,
        check=check,
        memory=memory,
        progress=progress,
        most_examples=most_examples,
        in_a_trace=in_a_trace,
        placed=default_device is not None or (not in_a_trace and committed(handed_in)),
    )


def _matching_ways(programs: Sequence[Program], form: Form, sizes: tuple) -> list[tuple[Way, ...]]:
    """How the parts of the rows are contracted, and those of the columns in the same order."""
    rows, columns = programs[0], programs[-1]
    # One function at one shape: rows and columns are the same program.
    if columns is rows:
        return [rows.ways(form, *sizes)] * len(programs)

    # Two programs: parts are paired by what they are coordinates of.
    if _by_coordinates(rows, form).keys() != _by_coordinates(columns, form).keys():
        form = "leaf order"  # the columns use some parameter in another way
    parts_of_columns = _by_coordinates(columns, form)
    ways_of_rows = []
    ways_of_columns = []
    ways = rows.ways(form, *sizes)
    for way, coordinates in zip(ways, _by_coordinates(rows, form), strict=True):
        part = parts_of_columns.get(coordinates)
        if part is not None:  # a leaf that only one side uses adds nothing
            ways_of_rows.append(way)
            ways_of_columns.append(dataclasses.replace(way, part=part))
    return [tuple(ways_of_rows), tuple(ways_of_columns)]


def _by_coordinates(program: Program, form: Form) -> dict[tuple, Part]:
    """Parts by their coordinates, in order: equal ones have factors that can be multiplied."""
    return {part.coordinates: part for part in program.parts(form)}


# How a kernel is split by parameters: leaves, layers of stacked leaves, or path globs.
#
# Every part of the Jacobian has the name of its leaf, or one name for each layer of a stack that a
# scan runs over. `per_leaf=True` makes a group of every name; globs sort the names into groups:
#
#     parts                        names                      groups of ["layers/*", "head"]
#     head        [8 10]           head                       1
#     layers/w    [2 8 8]          layers/w[0] layers/w[1]    0 0
#
# The kernel of a group is the sum over its names. What no glob matches is the last group.

_REST = "(rest)"


def _leaf_groups(
    names_of_parts: list[list[str]], per_leaf: Literal[True] | str | Sequence[str]
) -> tuple[tuple[str, ...], list[tuple[int, ...]]]:
    """The names of the groups, and for every part the numbers of its groups, one for each name."""
    # A leaf that is used in two ways is two parts of one name.
    names = list(dict.fromkeys(itertools.chain.from_iterable(names_of_parts)))
    group_of = {name: name for name in names}
    globs: Sequence[str] = ()
    if per_leaf is not True:
        globs = [per_leaf] if isinstance(per_leaf, str) else per_leaf
        # The first glob that matches a name takes it.
        for name in names:
            matching = (glob for glob in globs if arguments.matches(glob, name))
            group_of[name] = next(matching, _REST)
    for glob in globs:
        if glob not in group_of.values():
            that_is_left = " that are left" if len(globs) > 1 else ""
            raise errors.InvalidInputError(
                expected="path globs that match parameters",
                got=f"per_leaf={glob!r}, which matches none{that_is_left}",
                do=f"The parameters are: {', '.join(names)}.",
            )
    # Groups stand in the order of their globs, with the rest at the end.
    groups = tuple(dict.fromkeys([*globs, *group_of.values()]))
    number_of = {name: groups.index(group) for name, group in group_of.items()}
    return groups, [tuple(number_of[name] for name in of_part) for of_part in names_of_parts]


def _names_of(
    part: Part, paths: list[str], stacked: dict[int, tuple[int, int]]
) -> tuple[list[str], int]:
    """The names of a part, "path" or "path[layer]" for each layer, and its rounds of layers."""
    [leaf] = part.leaves
    if leaf not in stacked:
        return [paths[leaf]], 1
    n_rounds, n_layers = stacked[leaf]
    layers = [f"{paths[leaf]}[{layer}]" for layer in range(n_layers)]
    if part.kind in ("dense", "assembled"):  # in the order of the leaf
        return layers, n_rounds
    # Where a scan runs over the layers, they are the outermost part of its coordinates. With any
    # other view the layers lie across these, and the leaf is one.
    weight = part.sites[0].use.weight
    step = weight.array.strides[0] if weight.block_shape[:1] == (n_layers,) else 0
    if abs(step) * n_layers * n_rounds == weight.size:
        return layers if step > 0 else layers[::-1], 1
    return [paths[leaf]], 1
