"""A function at fixed shapes: its Jacobian found once, its factors traced and compiled once.

1. f is traced on one example, or on a joint batch, which counts as one: `OutputVector`.
2. `StructuredJacobian` walks that jaxpr and finds how every parameter is used; `parts` sorts the
   uses into the terms of the kernel.
3. For given ways of contracting them, forward pass, backward passes and factors of one example are
   traced (`FactorTrace`), mapped over examples and compiled.

A program holds shapes and jaxprs, not the function and no parameters. It is kept in a cache for as
long as its function lives, and found again for arguments of the same shapes.

A `FactorTrace` is all of that for one example, as a jaxpr. The factors are the arrays that stand
for the Jacobian of each part of the parameters, along the output directions that are asked for: one
backward pass each.

Tracing is what takes time in Python, so it is done once; `vmap` of the jaxpr then gives the factors
of a batch. What does not depend on the example (the cotangents of a last linear layer) is not
mapped: it is computed and kept once.
"""

import contextlib
import dataclasses
import functools
import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.engine.calls.call import Batch, Call
from ntkdiag.engine.contracting.contraction_methods import Way
from ntkdiag.engine.jacobian.factors import Factor, Outer, merge_dense
from ntkdiag.engine.jacobian.parts import Form, Part
from ntkdiag.engine.jacobian.structured_jacobian import StructuredJacobian
from ntkdiag.engine.tracing import reverse_mode
from ntkdiag.engine.tracing.output_vector import OutputVector
from ntkdiag.jaxtools import arguments, cpu, jaxprs
from ntkdiag.jaxtools.caching import Cache, Fixed, arrays_of
from ntkdiag.jaxtools.compiling import Compiled
from ntkdiag.jaxtools.cpu import compiler_options, known_answer_test
from ntkdiag.jaxtools.jaxprs import Jaxpr, TreeStructure
from ntkdiag.jaxtools.liveness import depends_on, without_dead
from ntkdiag.jaxtools.precision import in_full_precision
from ntkdiag.jaxtools.tracing import is_traced, trace_settings


@dataclasses.dataclass(frozen=True, eq=False)
class FactorTrace:
    """A jaxpr: (parameters, directions, keyword arrays; one example) -> (factors, outputs)."""

    jaxpr: Jaxpr  # the jaxpr
    consts: list  # its constants
    structure: TreeStructure  # tree of its outputs
    n_fixed: int  # how many of its inputs all examples share; the rest are the example
    varying: list[bool]  # for each of its outputs whether it depends on the example

    @property
    def varying_inputs(self) -> list[bool]:
        """Which inputs differ from example to example."""
        return [number >= self.n_fixed for number in range(len(self.jaxpr.invars))]

    def __call__(self, fixed: PyTree, x: PyTree) -> PyTree[Array]:
        """Factors [n ...] and outputs [n C] of a batch of examples."""
        # Shared inputs are not mapped, nor are outputs that no example goes into.
        of_one = functools.partial(cpu.evaluate, self.jaxpr, self.consts)
        examples = jax.tree.leaves(x)
        in_axes = (None,) * self.n_fixed + (0,) * len(examples)
        out_axes = [0 if varies else None for varies in self.varying]
        of_batch = jax.vmap(of_one, in_axes=in_axes, out_axes=out_axes)
        return jax.tree.unflatten(self.structure, of_batch(*jax.tree.leaves(fixed), *examples))


Made = TypeVar("Made")
ArrayOrShape = Array | np.ndarray | jax.ShapeDtypeStruct
Directions = Float[Array | np.ndarray | jax.ShapeDtypeStruct, "k C"]

_PROGRAMS = Cache()
# Joined Jacobians have a multiple of so many columns: they can be cut into pieces of any size.
_COLUMNS = 256


class Program:
    """f at fixed shapes: the structure of its Jacobian, and how its factors are computed."""

    def __init__(
        self, f: Callable[..., PyTree], params: PyTree, x: PyTree, kwargs: dict, *, joint: bool
    ):
        self.joint = joint
        self.paths = _paths(params)
        self.verified: set[tuple] = set()
        # Shapes only: a program outlives the arrays it was made for.
        self._params = jax.tree.leaves(_shapes(params))
        self._kwargs = _shapes(arrays_of(kwargs))
        self._example = _shapes(x) if joint else _shapes(x, without_examples=True)
        # What is worked out for these shapes, here and later, by key: parts, traces, plans,
        # compilations. Any: each key has a type of its own, which `keep` takes from its maker.
        self._kept: dict[Hashable, Any] = {}

        # Trace f once, and find how every parameter is used.
        vector = OutputVector(f, jax.tree.structure(params), Fixed.of(kwargs), joint)
        with _garbage_collected_later():
            self.jacobian = StructuredJacobian.of(vector, self._params, self._kwargs, self._example)

        # What decides where and how it may be run.
        consts = jaxprs.open_jaxpr(self.jacobian.jaxpr)[1]
        self.closes_over_tracers = is_traced(consts)
        sums = jaxprs.contains(self.jacobian.jaxpr, "reduce_sum")
        self.reduces = sums and self.jacobian.dtype == jnp.float32
        if self.reduces and jax.default_backend() == "cpu":
            known_answer_test()  # begins now, on another thread, while the rest is traced

    @staticmethod
    def of(batch: Batch, params: PyTree, *, joint: bool) -> "Program":
        """The program of a batch: the one kept for arguments of these shapes, or a new one."""
        # How many examples there are matters to a joint batch only.
        x = batch.x if joint else _shapes(batch.x, n_examples=1)
        if is_traced(params, batch.x, batch.kwargs):
            # Inside someone's trace f may close over tracers of it: nothing is kept.
            return Program(batch.f, params, x, batch.kwargs, joint=joint)
        key = _key(params, x, batch.kwargs, joint)
        program = _PROGRAMS.get(batch.f, key)
        if program is None:
            program = Program(batch.f, params, x, batch.kwargs, joint=joint)
            if not program.closes_over_tracers:  # values of a trace end with it
                _PROGRAMS.put(batch.f, key, program)
        return program

    def keep(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make()` returned when this key was first asked for; kept as long as the program."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def is_first(self, key: Hashable) -> bool:
        """Whether nobody asked this before, with this key."""
        first = key not in self._kept
        self._kept[key] = True
        return first

    def parts(self, form: Form) -> list[Part]:
        """What the kernel is a sum over; see `jacobian.sites_to_parts`."""
        return self.keep(("parts", form), lambda: self.jacobian.parts(form))

    def trace(
        self, ways: tuple[Way, ...], directions: Directions, merged: bool = False
    ) -> FactorTrace:
        """The factors of one example in the form these ways contract.

        With `merged`, Jacobians that are formed stand side by side as one.
        """
        shape = jax.ShapeDtypeStruct(directions.shape, directions.dtype)
        key = "trace", _keys(ways), shape.shape, shape.dtype, merged
        return self.keep(key, lambda: self._traced(ways, shape, merged))

    def factors(
        self,
        ways: tuple[Way, ...],
        params: PyTree,
        directions: Directions,
        kwargs: dict | list,
        x: PyTree,
        merged: bool = False,
    ) -> tuple[list[Factor], Float[Array, "*n C"]]:
        """Factors of a batch, and f(x); not compiled, for use inside a jit.

        What no example goes into, be it a factor or f itself, is kept once, without an axis n.
        """
        fixed = (jax.tree.leaves(params), directions, arrays_of(kwargs))
        if self.joint:  # the batch is one example: [n ...] -> [1 n ...]
            x = jax.tree.map(lambda leaf: leaf[None], x)
        return self.trace(ways, directions, merged)(fixed, x)

    def compiled_factors(self, ways: tuple[Way, ...], merged: bool = False) -> Compiled:
        """`factors`, compiled as a function of (params, directions, kwargs, x)."""
        return self.compiled(
            ("factors", _keys(ways), merged),
            functools.partial(self.factors, ways, merged=merged),
            reduces=self.reduces,
        )

    def compiled_outputs(self, f: Callable[..., PyTree], kwargs: dict) -> Compiled:
        """f compiled, as a function of (params, x, kwargs), until `forget_outputs`: it holds f."""
        fixed = Fixed.of(kwargs)

        def outputs(params: PyTree, x: PyTree, arrays: list) -> PyTree:
            return f(params, x, **fixed.fill(arrays))

        return self.compiled("outputs", outputs, once=True)

    def forget_outputs(self) -> None:
        """Let go of the f that `compiled_outputs` holds: a program must not keep it alive."""
        self._kept.pop(("compiled", "outputs"), None)

    def compiled(
        self,
        key: Hashable,
        function: Callable[..., PyTree],
        *,
        reduces: bool = False,
        once: bool = False,
        donate: int | None = None,
    ) -> Compiled:
        """The first function given under this key, compiled in full precision, to be found again.

        `reduces` says that it contains a reduction and runs in float32, `once` that it is run once:
        both decide how it is compiled. The memory of argument number `donate` goes to the result.
        """

        def make() -> Compiled:
            options = compiler_options(reduces=reduces, once=once)
            return Compiled(in_full_precision(function), options, donate)

        return self.keep(("compiled", key), make)

    def _traced(
        self, ways: tuple[Way, ...], directions: jax.ShapeDtypeStruct, merged: bool
    ) -> FactorTrace:
        """Trace the factors of one example."""
        fixed = (self._params, directions, self._kwargs)
        parts = [way.part for way in ways]

        def of_one(fixed: tuple, x: PyTree) -> tuple[list[Factor], Array]:
            """Factors of one example in the form they are contracted in, and its outputs."""
            params, directions, kwargs = fixed
            factors, outputs = self.jacobian.factors(parts, params, directions, kwargs, x)
            as_contracted = []
            for factor, way in zip(factors, ways, strict=True):
                as_contracted += _as_contracted(factor, way, bias_apart=merged)
            # Jacobians that are contracted as they are can stand side by side: one large product.
            if merged:
                as_contracted = merge_dense(as_contracted, _COLUMNS)
            return as_contracted, outputs

        try:
            with _garbage_collected_later():
                closed, out = jax.make_jaxpr(of_one, return_shape=True)(fixed, self._example)
        except reverse_mode.REFUSALS as error:
            inputs = self._kwargs, self._example
            reverse_mode.explain(self.jacobian.jaxpr, self._params, inputs, error)
        # What no factor needs is not computed, and counts in no plan.
        jaxpr, consts = jaxprs.open_jaxpr(closed)
        jaxpr = without_dead(jaxpr)
        n_fixed = len(jax.tree.leaves(fixed))
        varying = depends_on(jaxpr, n_fixed)
        return FactorTrace(jaxpr, consts, jax.tree.structure(out), n_fixed, varying)


def trace(call: Call) -> tuple[Program, Program | None]:
    """The programs of the rows and of the columns; None where the columns are the rows."""
    rows = Program.of(call.rows, call.params, joint=call.joint)
    columns = None
    if call.columns is not None:
        columns = Program.of(call.columns, call.params, joint=call.joint)
    for program in (rows, columns):
        if program is not None and not program.jacobian.uses_parameters:
            arguments.warn_of_no_parameter()
    return rows, columns


def _as_contracted(factor: Factor, way: Way, bias_apart: bool) -> list[Factor]:
    """The factor of one example in the form its way contracts.

    A bias rides along with its weight as one more input. Where the Jacobian is formed and joined
    with others it is kept apart: products of odd widths are slower.
    """
    biases = []
    if bias_apart and way.forms_jacobian and isinstance(factor, Outer) and factor.has_bias:
        factor, bias = factor.split_bias()
        biases.append(bias)
    if way.is_dense:
        factor = factor.dense()
    return [factor, *biases]


def _keys(ways: tuple[Way, ...]) -> tuple:
    """Equal for ways that build the same factors."""
    return tuple(way.key for way in ways)


def _key(params: PyTree, x: PyTree, kwargs: dict, joint: bool) -> tuple:
    """What two calls must share to share a program."""
    # The same shapes trace differently under other settings of JAX.
    settings = trace_settings()
    fixed = Fixed.of(kwargs)
    arrays = arrays_of(kwargs)
    return joint, settings, fixed, _kinds(params), _kinds(x), _kinds(arrays)


def _kinds(tree: PyTree) -> tuple:
    """Structure, shapes and dtypes of a tree of arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves)


def _shapes(
    tree: PyTree, *, without_examples: bool = False, n_examples: int | None = None
) -> PyTree[jax.ShapeDtypeStruct]:
    """Shapes of a tree of arrays; without the example axis, or with another number of examples."""

    def of_leaf(leaf: ArrayOrShape) -> jax.ShapeDtypeStruct:
        shape = tuple(leaf.shape)
        if without_examples:
            shape = shape[1:]
        if n_examples is not None:
            shape = (n_examples, *shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    return jax.tree.map(of_leaf, tree)


def _paths(params: PyTree) -> list[str]:
    """Names of the leaves, in full where a slash in a key would make two alike."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
    times = Counter(names)
    unique = []
    for name, path in zip(names, paths, strict=True):
        unique.append(name if times[name] == 1 else jax.tree_util.keystr(path))
    return unique


@contextlib.contextmanager
def _garbage_collected_later() -> Iterator[None]:
    """Tracing makes many objects that all stay: looking for garbage takes a quarter of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
