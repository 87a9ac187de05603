"""A function at fixed shapes: its Jacobian found once, its factors traced and compiled once.

1. f is traced on one example, or on a joint batch, which counts as one: `OutputVector`.
2. `StructuredJacobian` walks that jaxpr and finds how every parameter is used; `parts` sorts the
   uses into the terms of the kernel.
3. For given ways of contracting them, forward pass, backward passes and factors of one example are
   traced (`FactorTrace`), mapped over examples and compiled.

A program holds shapes and jaxprs, neither the function nor parameters. It is kept in a cache for as
long as its function lives, and found again for arguments of the same shapes.

A `FactorTrace` is step 3 for one example, as a jaxpr. The factors are the arrays that stand for the
Jacobian of each part of the parameters, along the output directions that are asked for: one
backward pass each.

Tracing is what takes time in Python, so it is done once; `vmap` of the jaxpr then gives the factors
of a batch. What does not depend on the example (the cotangents of a last linear layer) is not
mapped: it is computed and kept once.
"""

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.call_f import outputs_of
from ntkdiag.engine.contraction import Way, choose
from ntkdiag.engine.cost import JaxprCost, jaxpr_cost
from ntkdiag.engine.jacobian.factors import Outer, Piece, merge_dense
from ntkdiag.engine.jacobian.parts import Form, Part, sites_to_parts
from ntkdiag.engine.jacobian.structured_jacobian import StructuredJacobian
from ntkdiag.jaxtools import cpu, jaxprs
from ntkdiag.jaxtools.arguments import leaf_name
from ntkdiag.jaxtools.caching import Cache, Fixed, arrays_of
from ntkdiag.jaxtools.cpu import compiler_options, known_answer_test
from ntkdiag.jaxtools.jaxprs import Jaxpr, Literal, TreeStructure, downstream, without_dead
from ntkdiag.jaxtools.precision import in_full_precision
from ntkdiag.jaxtools.tracing import is_traced, trace_settings
from ntkdiag.kernel.reduction import Contraction

_MOST_NAMED = 7  # shapes in a note: the first ones and the last


@dataclasses.dataclass(frozen=True, eq=False)
class OutputVector:
    """f of flat parameters, the arrays among its keyword arguments, and one example."""

    f: Callable[..., PyTree]  # the user's function
    structure: TreeStructure  # tree of the parameters
    fixed: Fixed  # keyword arguments that are not arrays
    joint: bool  # whether a batch counts as one example

    def __call__(
        self, params: Sequence[Array], kwargs: Sequence[Array], x: PyTree
    ) -> Float[Array, " C"]:
        """All outputs of one example."""
        # Call f as its user would: with its own tree of parameters, and examples on an axis.
        params_tree = jax.tree.unflatten(self.structure, params)
        if not self.joint:
            x = jax.tree.map(lambda leaf: leaf[None], x)  # [...] -> [1 ...]
        try:
            outputs = outputs_of(self.f, params_tree, x, self.fixed.fill(kwargs))
        except errors.NtkdiagError as error:
            self._note_call(error, params_tree, x)
            raise
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(outputs)]
        # They have as many rows as there are examples; of graphs, as many as the first output has.
        lengths = [leaf.shape[:1] for leaf in jax.tree.leaves(x)]
        [n] = lengths[0]
        if self.joint and len(set(lengths)) > 1 and leaves and leaves[0].ndim:
            n = leaves[0].shape[0]
        self._require_outputs(leaves, n)

        # Lay the outputs of every leaf end to end; C_k are those of leaf k, C those of all.
        if self.joint:
            rows = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]  # [n ...] -> [n C_k]
            return jnp.concatenate(rows, axis=1).reshape(-1)  # -> [n C] -> [(n C)]
        flat = [leaf.reshape(-1) for leaf in leaves]  # [1 ...] -> [C_k]
        if len(flat) == 1:
            return flat[0]
        return jnp.concatenate(flat)  # -> [C]

    def _note_call(self, error: Exception, params: PyTree, x: PyTree) -> None:
        """Add to an error of f what f was called with, which is not what the user wrote."""
        leaves = jax.tree_util.tree_leaves_with_path({"params": params, "x": x})
        shapes = [f"{leaf_name(path)} {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves]
        if len(shapes) > _MOST_NAMED:
            shapes = [*shapes[: _MOST_NAMED - 1], "...", shapes[-1]]
        batch = "one example, on an axis of length 1"
        if self.joint:
            batch = "all examples as one batch"
        call = errors.current_call()
        error.add_note(f"{call} called f(params, x) with {batch}: {', '.join(shapes)}.")

    def _require_outputs(self, leaves: list[Array], n: int) -> None:
        """Refuse outputs that are not real floating arrays with the n examples first."""
        floating = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
        with_examples = [leaf.ndim > 0 and leaf.shape[0] == n for leaf in leaves]
        n_numbers = sum(leaf.size for leaf in leaves)
        if all(floating) and all(with_examples) and n_numbers:
            return
        # State the remedy for the first of these that is wrong: dtypes, then shapes.
        do = "Return one row of outputs per example; reduce over examples outside f."
        if any(jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf in leaves):
            do = "Return real and imaginary parts as two outputs."
        elif not all(floating):
            do = "Return only what can be differentiated."
        examples = "all examples" if self.joint else "1 example"
        got = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
        raise errors.InvalidInputError(
            expected=f"f(params, x) of {examples} to return real floating arrays with the example "
            f"axis first, length {n}",
            got=got or "nothing",
            do=do,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class FactorTrace:
    """A jaxpr: (parameters, directions, keyword arrays; one example) -> (pieces, outputs)."""

    jaxpr: Jaxpr
    consts: list  # its constants
    structure: TreeStructure  # tree of its outputs
    n_shared: int  # how many of its inputs all examples share; the rest are the example
    varying: list[bool]  # for each of its outputs whether it depends on the example

    @functools.cached_property
    def cost(self) -> JaxprCost:
        """What forward pass, backward passes and factors of one example cost."""
        n_inputs = len(self.jaxpr.invars)
        return jaxpr_cost(self.jaxpr, [number >= self.n_shared for number in range(n_inputs)])

    def __call__(self, shared: PyTree, x: PyTree) -> PyTree[Array]:
        """Pieces [n ...] and outputs [n C] of a batch of examples."""
        # Shared inputs are not mapped, nor are outputs that depend on no example.
        of_one = functools.partial(cpu.evaluate, self.jaxpr, self.consts)
        examples = jax.tree.leaves(x)
        in_axes = (None,) * self.n_shared + (0,) * len(examples)
        out_axes = [0 if varies else None for varies in self.varying]
        of_batch = jax.vmap(of_one, in_axes=in_axes, out_axes=out_axes)
        return jax.tree.unflatten(self.structure, of_batch(*jax.tree.leaves(shared), *examples))


ArrayOrShape = Array | np.ndarray | jax.ShapeDtypeStruct
Basis = Float[Array | np.ndarray | jax.ShapeDtypeStruct, "k C"]

_PROGRAMS = Cache()
# What JAX raises where a derivative does not exist.
_REFUSALS = (ValueError, TypeError, NotImplementedError)
# Joined Jacobians have a multiple of so many columns: they can be cut into equal chunks.
_COLUMNS = 256


class Program:
    """f at fixed shapes: the structure of its Jacobian, and how its factors are computed."""

    def __init__(
        self, f: Callable[..., PyTree], params: PyTree, example: PyTree, kwargs: dict, joint: bool
    ):
        self.joint = joint
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        self.paths = list(map(leaf_name, paths))
        if len(set(self.paths)) < len(paths):  # a slash in a key makes two names alike
            self.paths = list(map(jax.tree_util.keystr, paths))
        # Shapes only: a program outlives the arrays it was made for.
        self._params = jax.tree.leaves(_shapes(params))
        self._kwargs = _shapes(arrays_of(kwargs))
        self._example = example
        # What is worked out for these shapes, here and by those who plan and run.
        self.verified: set[tuple] = set()  # switches with which examples were seen not to interact
        self.plans: dict[tuple, Any] = {}
        self._parts: dict[Form, list[Part]] = {}
        self._ways: dict[tuple, tuple[Way, ...]] = {}
        self._traces: dict[tuple, FactorTrace] = {}
        self._compiled: dict[tuple, Callable] = {}

        # Trace f once, and find how every parameter is used.
        vector = OutputVector(f, jax.tree.structure(params), Fixed.of(kwargs), joint)
        with _garbage_collected_later():
            self.jacobian = StructuredJacobian.of(vector, self._params, self._kwargs, self._example)

        # Whether it may be kept, and whether it has what XLA may miscompile on a CPU: float32 sums.
        consts = jaxprs.open_jaxpr(self.jacobian.jaxpr)[1]
        self.closes_over_tracers = is_traced(consts)
        sums = jaxprs.contains(self.jacobian.jaxpr, "reduce_sum")
        self.reduces = sums and self.jacobian.dtype == jnp.float32
        if self.reduces and jax.default_backend() == "cpu":
            known_answer_test(once=False)  # begins on another thread, while the rest is traced

    @staticmethod
    def of(
        f: Callable[..., PyTree], params: PyTree, x: PyTree, kwargs: dict, *, joint: bool
    ) -> "Program":
        """The program of f: the one kept for arguments of these shapes, or a new one."""
        # The number of examples matters only for a joint batch.
        example = _shapes(x, without_examples=not joint)
        if is_traced(params, x, kwargs):
            # Inside someone's trace f may close over tracers of it: nothing is kept.
            return Program(f, params, example, kwargs, joint)
        # The same shapes trace differently under other settings of JAX.
        kinds = _kinds(params), _kinds(example), _kinds(arrays_of(kwargs))
        key = joint, trace_settings(), Fixed.of(kwargs), kinds
        program = _PROGRAMS.get(f, key)
        if program is None:
            program = Program(f, params, example, kwargs, joint)
            if not program.closes_over_tracers:  # values of a trace end with it
                _PROGRAMS.put(f, key, program)
        return program

    def parts(self, form: Form) -> list[Part]:
        """What the kernel is a sum over: `form` says whether a part may have several leaves."""
        if form not in self._parts:
            found = self.jacobian
            sites = list(found.sites.values())
            self._parts[form] = sites_to_parts(sites, found.dense_leaves, found.shapes, form)
        return self._parts[form]

    def ways(self, form: Form, n: int, m: int, k: int, contraction: Contraction) -> tuple[Way, ...]:
        """The cheapest ways for n by m examples (0: the rows) and k directions."""
        key = form, n, m, k, contraction
        if key not in self._ways:
            self._ways[key] = choose(self.parts(form), n, m, k, contraction)
        return self._ways[key]

    def trace(self, ways: tuple[Way, ...], directions: Basis, merged: bool = False) -> FactorTrace:
        """The factors of one example in the form these ways contract."""
        shape = jax.ShapeDtypeStruct(directions.shape, directions.dtype)
        keys = tuple(way.key for way in ways)
        key = keys, shape.shape, shape.dtype, merged
        if key in self._traces:
            return self._traces[key]
        shared = (self._params, shape, self._kwargs)
        parts = [way.part for way in ways]

        def of_one(shared: tuple, x: PyTree) -> tuple[list[Piece], Array]:
            """Factors of one example in the form they are contracted in, and its outputs."""
            params, directions, kwargs = shared
            factors, outputs = self.jacobian.factors(parts, params, directions, kwargs, x)
            pieces = []
            for factor, way in zip(factors, ways, strict=True):
                # A bias rides along with its weight as one more input. Where the Jacobian is formed
                # and joined with others it is kept apart: products of odd widths are slower.
                biases = []
                kept_apart = merged and way.forms_jacobian
                if kept_apart and isinstance(factor, Outer) and factor.has_bias:
                    factor, bias = factor.split_bias()
                    biases.append(Piece("dense", bias))
                formed = factor.dense() if way.name == "dense" else factor
                pieces += [Piece(way.name, formed), *biases]
            # Jacobians that are contracted as they are can stand side by side: one large product.
            return merge_dense(pieces, _COLUMNS) if merged else pieces, outputs

        try:
            with _garbage_collected_later():
                closed, out = jax.make_jaxpr(of_one, return_shape=True)(shared, self._example)
        except _REFUSALS as error:
            self._explain(error)
        # Values that no factor needs are not computed, and do not count in the plan.
        jaxpr, consts = jaxprs.open_jaxpr(closed)
        jaxpr = without_dead(jaxpr)
        n_shared = len(jax.tree.leaves(shared))
        of_example = downstream(jaxpr, jaxpr.invars[n_shared:])
        varying = [not isinstance(y, Literal) and y in of_example for y in jaxpr.outvars]
        trace = FactorTrace(jaxpr, consts, jax.tree.structure(out), n_shared, varying)
        self._traces[key] = trace
        return trace

    def pieces(
        self,
        ways: tuple[Way, ...],
        params: PyTree,
        directions: Basis,
        kwargs: dict | list,
        x: PyTree,
        merged: bool = False,
    ) -> tuple[list[Piece], Float[Array, "*n C"]]:
        """Factors of a batch, and f(x); not compiled, for use inside a jit."""
        shared = (jax.tree.leaves(params), directions, arrays_of(kwargs))
        if self.joint:  # the batch is one example: [n ...] -> [1 n ...]
            x = jax.tree.map(lambda leaf: leaf[None], x)
        # What depends on no example, be it a factor or f itself, is kept once, without an axis n.
        return self.trace(ways, directions, merged)(shared, x)

    def compiled_pieces(self, ways: tuple[Way, ...], merged: bool = False) -> Callable:
        """`pieces`, compiled as a function of (params, directions, kwargs, x)."""
        key = tuple(way.key for way in ways), merged
        if key not in self._compiled:
            function = in_full_precision(functools.partial(self.pieces, ways, merged=merged))
            options = compiler_options(reduces=self.reduces)
            self._compiled[key] = jax.jit(function, compiler_options=options)
        return self._compiled[key]

    def _explain(self, error: Exception) -> NoReturn:
        """Say that f has no reverse derivative, or raise `error` if it has one."""
        # Tracing factors may fail because of f or because of the engine: an ordinary VJP of f
        # decides.
        jaxpr, consts = jaxprs.open_jaxpr(self.jacobian.jaxpr)

        def plain_vjp(params: list, inputs: list) -> tuple:
            def f(*params):
                return jaxprs.eval_jaxpr(jaxpr, consts, *params, *inputs)[0]

            outputs, vjp = jax.vjp(f, *params)
            return vjp(jnp.zeros_like(outputs))

        try:
            inputs = jax.tree.leaves((self._kwargs, self._example))
            jax.eval_shape(plain_vjp, self._params, inputs)
        except _REFUSALS as reason:
            raise errors.UnsupportedModelError(
                call="f(params, x)",
                expected="a function that JAX can differentiate in reverse mode",
                got="JAX's refusal: " + str(reason).splitlines()[0].rstrip("."),
                do="Write loops as lax.scan or with a fixed number of steps, and give other "
                "operations a jax.custom_vjp.",
            ) from reason
        raise error


def _kinds(tree: PyTree) -> tuple:
    """Structure, shapes and dtypes of a tree of arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves)


def _shapes(tree: PyTree, *, without_examples: bool = False) -> PyTree[jax.ShapeDtypeStruct]:
    """Shapes of a tree of arrays, or those without the example axis."""

    def of_leaf(leaf: ArrayOrShape) -> jax.ShapeDtypeStruct:
        shape = leaf.shape[1:] if without_examples else leaf.shape
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

    return jax.tree.map(of_leaf, tree)


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
