"""One call of `ntk` or `plan`: what the user handed in, checked before any work.

A `Call` is a pytree whose leaves are everything that may lie on devices: it goes as a whole through
a mesh, into a trace, or is looked through for tracers. What is no array (functions, options) stays
with its structure.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import arrays, call_f
from ntkdiag.jaxtools import arguments
from ntkdiag.kernel.preconditioner import Preconditioner
from ntkdiag.kernel.reduction import Projection, RandomProjections

Examples = Literal["independent", "joint"]
Memory = int | float | str


@dataclasses.dataclass(frozen=True, eq=False)
class Options:
    """How a kernel is asked for; see `ntk` for those that it takes."""

    reduction: str | Projection | RandomProjections = "mean"  # over outputs
    # Whether kernels of leaves, or of groups of them, are asked for.
    per_leaf: bool | str | Sequence[str] = False
    memory: Memory | None = None  # budget; None is half of what is free
    precision: str = "highest"  # how products of Jacobians are rounded
    examples: Examples | None = None  # whether examples interact; None follows the function
    check: bool = True  # whether parameters are finite and examples independent is verified
    # Whether to show how far it has come; None as `ntkdiag.progress` decides.
    progress: bool | None = False
    # Internal: largest number of examples of a tile; None for as many as fit.
    most_examples: int | None = None


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["x", "kwargs"], meta_fields=["f", "n_rows"]
)
@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Rows or columns of a kernel: a function, and the examples at which it is differentiated."""

    f: Callable[..., PyTree]  # `f(params, x, **kwargs)`
    x: PyTree  # the examples: arrays with the example axis first
    kwargs: dict[str, Any]  # keyword arguments of f; arrays among them are shared by all examples
    # Of a joint batch whose arrays have different first axes (nodes and edges of graphs) the rows
    # of its outputs; None of any other, whose examples are counted.
    n_rows: int | None = None

    @functools.cached_property
    def n(self) -> int:
        """Number of examples."""
        if self.n_rows is not None:
            return self.n_rows
        return jax.tree.leaves(self.x)[0].shape[0]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "rows", "columns", "preconditioner"],
    meta_fields=["options"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """Everything one call of `ntk` or `plan` was given."""

    params: PyTree  # parameters of both functions
    rows: Batch  # the row examples
    columns: Batch | None  # the column examples; None where they are the rows
    preconditioner: PyTree  # p as it was handed in, and after `read` a `Preconditioner`
    options: Options  # the rest

    @staticmethod
    def of(
        f: Callable[..., PyTree],
        params: PyTree,
        x: PyTree,
        x2: PyTree,
        f2: Callable[..., PyTree] | None,
        preconditioner: PyTree,
        kwargs: dict[str, Any],
        options: Options,
    ) -> "Call":
        """A call as `ntk` has it: x2 or f2 may be left out, and keyword arguments are shared."""
        # With the same function and the same examples one triangle of the kernel is enough.
        columns = None
        if x2 is not None or f2 is not None:
            columns = Batch(f if f2 is None else f2, x if x2 is None else x2, kwargs)
        return Call(params, Batch(f, x, kwargs), columns, preconditioner, options)

    @property
    def batches(self) -> list[Batch]:
        """Rows, and columns where they are others."""
        return [self.rows] if self.columns is None else [self.rows, self.columns]

    @property
    def joint(self) -> bool:
        """Whether the batch is differentiated as a whole, because examples may interact."""
        if self.options.examples is None:
            return any(getattr(batch.f, "joint", False) is True for batch in self.batches)
        return self.options.examples == "joint"


def read(call: Call) -> Call:
    """The call with everything checked, numpy arrays made JAX arrays, and 1/P made of P."""
    # From here on all arrays are JAX's: their dtypes are those the session allows.
    call = _with_arrays(call)

    # The function, the parameters and the options.
    options = call.options
    for batch in call.batches:
        arguments.check_function(batch.f)
    arguments.check_params(call.params, finite=options.check)
    if options.examples is not None:
        arguments.check_choice(options.examples, ("independent", "joint"), "examples=...")
    arguments.check_globs(options.per_leaf)
    arguments.check_precision(options.precision)

    # The examples.
    if call.joint:
        call = _with_rows_counted(call)
    else:
        arguments.batch_size(call.rows.x, "x")
    if call.columns is not None:
        if not call.joint:
            arguments.batch_size(call.columns.x, "x2")
        if call.columns.f is call.rows.f:  # another function may take other inputs
            arguments.check_alike(call.rows.x, call.columns.x)
    if options.check:
        for batch, name in zip(call.batches, ("x", "x2"), strict=False):
            arguments.check_no_nan(batch.x, name)

    # K = J P^-1 J^T: P is inverted once, here.
    inverse = Preconditioner.of(call.preconditioner, call.params)
    return dataclasses.replace(call, preconditioner=inverse)


def _with_rows_counted(call: Call) -> Call:
    """A joint call whose batches know how many rows of outputs they have.

    Examples of a joint batch are counted by its arrays, where these have one first axis for all;
    batches of graphs have those of nodes, edges and graphs, and what f returns has the rows.
    """

    def counted(batch: Batch, name: str) -> Batch:
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch.x)}
        if len(lengths) < 2:
            arguments.batch_size(batch.x, name)  # refuses what has no examples at all
            return batch
        arguments.check_alive(batch.x, name)
        with call_f.running():
            f = functools.partial(batch.f, **batch.kwargs)
            outputs = jax.tree.leaves(jax.eval_shape(f, call.params, batch.x))
        # Where there is no first axis, tracing f for its Jacobian says what is wrong.
        first_axes = [leaf.shape[0] for leaf in outputs if leaf.ndim]
        return dataclasses.replace(batch, n_rows=first_axes[0] if first_axes else 1)

    columns = None if call.columns is None else counted(call.columns, "x2")
    return dataclasses.replace(call, rows=counted(call.rows, "x"), columns=columns)


def _with_arrays(call: Call) -> Call:
    """The call with all that holds numbers read by the one door for arrays."""
    columns = None if call.columns is None else _batch(call.columns, "x2")
    return Call(
        arrays.with_arrays(call.params, "params"),
        _batch(call.rows, "x"),
        columns,
        arrays.with_arrays(call.preconditioner, "preconditioner"),
        call.options,
    )


def _batch(batch: Batch, name: str) -> Batch:
    """A batch whose examples, and the arrays among the keyword arguments of f, are JAX's."""
    x = arrays.as_examples(batch.x, name)
    return Batch(batch.f, x, arrays.with_arrays(batch.kwargs, "kwargs"))
