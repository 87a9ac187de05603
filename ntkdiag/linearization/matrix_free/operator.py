"""The empirical NTK as a linear operator: products K v without K."""

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import _compat
from ntkdiag.kernels import arguments, meshes
from ntkdiag.kernels.interaction import check_few
from ntkdiag.kernels.operands.operand import refuse
from ntkdiag.linearization.matrix_free import microbatches
from ntkdiag.linearization.matrix_free.program import CALL, run


@jax.tree_util.register_pytree_node_class
class NTKOperator:
    """K = J(x) J(x2)^T as an operator on vectors over examples and outputs.

    A product is one backward and one `jax.jvp` sweep over microbatches: the kernel is never formed, and no more than
    one microbatch is differentiated at a time. Rows are ordered as in the full `Kernel`, index (n, o).
    `K @ v`, `K.mv(v)` and `K(v)` are the same, so it goes where a callable is wanted (`jax.scipy.sparse.linalg.cg`,
    matfree), and `K.lineax()` where lineax wants an operator. It is a pytree: hand it through `jax.jit`.
    Cost of a product: about five forward passes over the data, and memory of one microbatch beside P numbers.

    Attributes:
        f: `f(params, x)`, with one array of outputs `[n ...]`.
        params: Where the Jacobians are taken; real floating leaves.
        x: Row examples.
        x2: Column examples; None for x.
        microbatch: Examples differentiated at a time.
        n_examples: Number of row examples.
        output_shape: Shape of the outputs of one example.
        dtype: Of the outputs.
        shape: `(n o, m p)`.
        symmetric: Whether rows and columns are the same examples.
    """

    def __init__(
        self, f: Callable[..., Any], params: Any, x: Any, x2: Any = None, *, microbatch: int = 256, check: bool = True
    ):
        """Look at f, the parameters and the examples.

        Cost: tracing f once; where there are several microbatches, f of four examples together and each alone.

        Args:
            f: `f(params, x)`.
            params: The parameters.
            x: Row examples, an array or pytree of arrays.
            x2: Column examples; None for x.
            microbatch: Examples differentiated at a time.
            check: Whether to verify that examples are independent, where there are several microbatches.

        Raises:
            InvalidInputError: When the parameters are not finite real floating arrays, the outputs are not one
                floating array with the example axis first, or the microbatch is no positive integer.
            ExamplesInteractError: When outputs of one example depend on the others, as with batch norm in train mode:
                a microbatch would be another network.
        """
        arguments.check_function(f, CALL)
        arguments.check_params(params, CALL)
        if not isinstance(microbatch, int | np.integer) or microbatch < 1:
            refuse(CALL, expected="a positive integer `microbatch`", got=repr(microbatch), do="256 is the default.")
        self.f = f
        self.params, self.x, self.x2 = jax.tree.map(jnp.asarray, (params, x, x2))
        self.n_examples = arguments.batch_size(self.x, CALL, "x")
        m = self.n_examples if x2 is None else arguments.batch_size(self.x2, CALL, "x2")
        self.microbatch = min(microbatch, max(self.n_examples, m))
        jaxpr, found = jax.make_jaxpr(f, return_shape=True)(self.params, self.x)
        self.closes_over_explicit = meshes.explicit(_compat.open_jaxpr(jaxpr)[1]) is not None
        meshes.within((self.params, self.x, self.x2), self.closes_over_explicit, CALL)
        self.output_shape, self.dtype = _outputs(found, self.n_examples)
        size = int(np.prod(self.output_shape))
        self.shape = (self.n_examples * size, m * size)
        if check and self.microbatch < max(self.n_examples, m) and not self._traced(jaxpr):
            otherwise = ", or a microbatch of at least as many examples as there are"
            check_few(f, self.params, self.x, CALL, otherwise)
        self.reduces = _compat.contains(jaxpr, "reduce_sum") and self.dtype == jnp.float32

    def _traced(self, jaxpr: Any) -> bool:
        """Whether f cannot be evaluated now, being part of someone's program."""
        given = self.params, self.x, self.x2, _compat.open_jaxpr(jaxpr)[1]
        return arguments.is_traced(given) or _compat.staging()

    @property
    def symmetric(self) -> bool:
        """Whether rows and columns are the same examples."""
        return self.x2 is None

    def mv(self, v: jax.typing.ArrayLike) -> jax.Array:
        """K v.

        Cost: about five forward passes over the data for each column.

        Args:
            v: `[(m p)]`, shaped like the outputs `[m ...]`, or a matrix `[(m p) k]`.

        Returns:
            The product, in the layout of v.

        Raises:
            InvalidInputError: When v has another shape.
        """
        v = jnp.asarray(v, _compat.at_least_float32(self.dtype))
        columns = (self.shape[1] // int(np.prod(self.output_shape)), *self.output_shape)
        if v.ndim == 2 and v.shape[0] == self.shape[1] and v.shape != columns:
            return jax.lax.map(self.mv, v.T).T
        if v.shape not in ((self.shape[1],), columns):
            _refuse_shape("mv", f"({self.shape[1]},), ({self.shape[1]}, k) or {columns}", v)
        product = run(_product, self, v.reshape(columns))
        return product.reshape(-1) if v.ndim == 1 and v.shape != columns else product

    def __matmul__(self, v: jax.typing.ArrayLike) -> jax.Array:
        return self.mv(v)

    def __call__(self, v: jax.typing.ArrayLike) -> jax.Array:
        """K v; see `mv`."""
        return self.mv(v)

    def outputs(self) -> jax.Array:
        """f(params, x).

        Cost: one forward pass.

        Returns:
            `[n ...]`.
        """
        return run(_forward, self)

    def tangent(self, step: Any) -> jax.Array:
        """J step, the change of the outputs on the row examples to first order.

        Cost: about two forward passes.

        Args:
            step: A tree like the parameters.

        Returns:
            `[n ...]`.

        Raises:
            InvalidInputError: When it is not like them.
        """
        expected, got = (
            (jax.tree.structure(v), [jnp.shape(leaf) for leaf in jax.tree.leaves(v)]) for v in (self.params, step)
        )
        if expected != got:
            refuse(
                "NTKOperator.tangent(step)",
                expected=f"a tree like the parameters, {expected[0]} of shapes {expected[1]}"[:300],
                got=f"{got[0]} of shapes {got[1]}"[:300],
                do="Pass a step of the parameters, such as a difference of two checkpoints.",
            )
        return run(_tangent, self, step)

    def cotangent(self, v: jax.typing.ArrayLike) -> Any:
        """J^T v for the row examples.

        Cost: one forward and one backward pass.

        Args:
            v: `[n ...]`, like the outputs, or flat.

        Returns:
            A tree like the parameters.

        Raises:
            InvalidInputError: When v has another shape.
        """
        v, rows = jnp.asarray(v), (self.n_examples, *self.output_shape)
        if v.shape not in ((self.shape[0],), rows):
            _refuse_shape("cotangent", f"({self.shape[0]},) or {rows}", v)
        return run(_cotangent, self, v.reshape(rows))

    def lineax(self) -> Any:
        """The operator for lineax: symmetric operators are tagged positive semidefinite.

        Cost: none.

        Returns:
            A `lineax.AbstractLinearOperator` on vectors `[(m p)]`.
        """
        from ntkdiag.linearization.matrix_free.lineax_operators import KernelOperator

        return KernelOperator(self)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Arrays, and what is fixed when a function of the operator is compiled."""
        fixed = ("f", "microbatch", "n_examples", "output_shape", "dtype", "shape", "reduces", "closes_over_explicit")
        return (self.params, self.x, self.x2), tuple((name, getattr(self, name)) for name in fixed)

    @classmethod
    def tree_unflatten(cls, fixed: tuple[Any, ...], arrays: tuple[Any, ...]) -> "NTKOperator":
        """Put an operator together again."""
        operator = object.__new__(cls)
        operator.params, operator.x, operator.x2 = arrays
        vars(operator).update(fixed)
        return operator

    def __repr__(self) -> str:
        return f"NTKOperator({self.shape[0]} x {self.shape[1]}, {self.dtype}, microbatch={self.microbatch})"


def batches_of(operator: NTKOperator, columns: bool = False) -> Any:
    """The examples of an operator in microbatches.

    Cost: at most one copy of the examples.

    Args:
        operator: The operator.
        columns: Those of the columns.

    Returns:
        Arrays `[b size ...]`.
    """
    x = operator.x2 if columns and not operator.symmetric else operator.x
    return microbatches.split(x, jax.tree.leaves(x)[0].shape[0], operator.microbatch)


def _product(operator: NTKOperator, v: jax.Array) -> jax.Array:
    pulled = microbatches.cotangents(operator.f, operator.params, batches_of(operator, columns=True), v)
    return _tangent(operator, pulled)


def _tangent(operator: NTKOperator, step: Any) -> jax.Array:
    step = jax.tree.map(lambda d, p: d.astype(p.dtype), step, operator.params)
    change = microbatches.tangents(operator.f, operator.params, batches_of(operator), step, operator.n_examples)[1]
    return change.astype(_compat.at_least_float32(operator.dtype))


def _cotangent(operator: NTKOperator, v: jax.Array) -> Any:
    return microbatches.cotangents(operator.f, operator.params, batches_of(operator), v)


def _forward(operator: NTKOperator) -> jax.Array:
    return microbatches.outputs(operator.f, operator.params, batches_of(operator), operator.n_examples)


def _refuse_shape(method: str, expected: str, v: jax.Array) -> NoReturn:
    refuse(
        f"NTKOperator.{method}(v)",
        expected=f"v of shape {expected}",
        got=f"shape {v.shape}",
        do="Rows are examples times outputs, the outputs of an example next to each other.",
    )


def _outputs(found: Any, n: int) -> tuple[tuple[int, ...], Any]:
    shape, dtype = getattr(found, "shape", None), getattr(found, "dtype", np.dtype(int))
    if shape is None or not jnp.issubdtype(dtype, jnp.floating) or shape[:1] != (n,):
        refuse(
            CALL,
            expected=f"f to return one floating array with the {n} examples first",
            got=f"{dtype}{list(shape)}" if shape is not None else type(found).__name__,
            do="Select an output: functionalize(model, ..., output=lambda y: y[0]).",
        )
    return tuple(shape[1:]), dtype
