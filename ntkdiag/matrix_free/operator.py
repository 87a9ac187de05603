"""The empirical NTK as a linear operator: products K v without K.

K v = J(x) P^-1 (J(x2)^T v). The factor on the right is one backward sweep: the cotangents v of the
columns are pulled back to the parameters, microbatch by microbatch, and summed. With a
preconditioner that sum is divided by P. The factor on the left is one forward-mode sweep along it
over the microbatches of the rows. Neither K nor J is ever formed, and no more than one microbatch
is differentiated at a time.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.arrays import as_array, as_examples, on_automatic_axes, with_arrays
from ntkdiag.call_f import running
from ntkdiag.jaxtools import arguments, jaxprs
from ntkdiag.jaxtools.independence import check_few
from ntkdiag.jaxtools.jaxprs import TreeStructure, have_derivatives
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.jaxtools.tracing import Tracer, is_traced, staging
from ntkdiag.kernel.preconditioner import Preconditioner
from ntkdiag.matrix_free import microbatches
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.pytree_dataclass import pytree

_ROWS = "Rows are examples times outputs, the outputs of an example next to each other."


@pytree("params", "x", "x2", "preconditioner")
@dataclasses.dataclass(init=False, repr=False, eq=False)
class NTKOperator:
    """K = J(x) P^-1 J(x2)^T as an operator on vectors over examples and outputs.

    A product is one backward and one forward-mode sweep over microbatches: the kernel is never
    formed. Rows are ordered as in the full `Kernel`, index (n, o). `K @ v`, `K.mv(v)` and `K(v)`
    are the same, so it works where a callable is expected (`jax.scipy.sparse.linalg.cg`, matfree).
    It is a pytree: pass it through `jax.jit`.

    Cost of a product: about five forward passes over the data, and the memory of one microbatch
    beside P numbers.

    Attributes:
        f: `f(params, x)`, with one array of outputs `[n ...]`.
        params: Where the Jacobians are taken; real floating leaves.
        x: Row examples.
        x2: Column examples; None for x.
        batch_size: Examples differentiated at a time: those of one microbatch.
        preconditioner: P as it was read: its `kind` ("none", "scalar", "per leaf", "elementwise")
            and 1/P leaf by leaf.
        n_examples: Number of row examples.
        output_shape: Shape of the outputs of one example.
        dtype: Of the outputs.
        shape: `(n o, m p)`.
        symmetric: Whether rows and columns are the same examples.
        reduces: Whether f reduces in float32, which needs compiler options of its own.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0], [2.0]])
        >>> K = NTKOperator(lambda w, x: x @ w, jnp.ones((1, 1)), x)
        >>> print(K @ jnp.array([1.0, 0.0]))
        [1. 2.]
    """

    f: Callable[..., PyTree]
    params: PyTree
    x: PyTree
    x2: PyTree
    batch_size: int
    preconditioner: Preconditioner
    n_examples: int
    output_shape: tuple[int, ...]
    dtype: np.dtype
    shape: tuple[int, int]
    reduces: bool

    @errors.public
    @on_automatic_axes
    def __init__(
        self,
        f: Callable[..., PyTree],
        params: PyTree,
        x: PyTree,
        x2: PyTree = None,
        *,
        batch_size: int | np.integer = 256,
        preconditioner: PyTree = None,
        check: bool = True,
    ):
        """Look at f, the parameters and the examples."""
        arguments.check_function(f)
        # Convert arrays once: NumPy arrays would be copied at each product.
        self.f = f
        self.params = with_arrays(params, "params")
        self.x = as_examples(x)
        self.x2 = as_examples(x2, "x2")
        arguments.check_params(self.params)
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise errors.InvalidInputError(
                expected="a positive integer `batch_size`",
                got=repr(batch_size),
                do="256 is the default.",
            )
        self.preconditioner = Preconditioner.of(preconditioner, self.params)
        if check:
            arguments.check_no_nan(self.x, "x")
            arguments.check_no_nan(self.x2, "x2")
        n_rows = arguments.batch_size(self.x, "x")
        n_columns = n_rows if x2 is None else arguments.batch_size(self.x2, "x2")
        n_most = max(n_rows, n_columns)
        self.n_examples = n_rows
        self.batch_size = min(int(batch_size), n_most)

        # One trace of f says what it returns, what it closes over, and how to compile it.
        with running():
            jaxpr, outputs = jax.make_jaxpr(f, return_shape=True)(self.params, self.x)
        opened, consts = jaxprs.open_jaxpr(jaxpr)
        arrays = (self.params, self.x, self.x2, self.preconditioner)

        self.output_shape, self.dtype = require_one_output(outputs, n_rows)
        if not have_derivatives(opened, len(jax.tree.leaves(self.params))):
            arguments.warn_of_no_parameter()
        size = int(np.prod(self.output_shape))
        self.shape = (n_rows * size, n_columns * size)
        self.reduces = jaxprs.contains(jaxpr, "reduce_sum") and self.dtype == jnp.float32

        # With one microbatch f gets all examples. Inside someone's program it cannot be evaluated
        # now.
        has_several = self.batch_size < n_most
        can_evaluate = not is_traced(arrays, consts) and not staging()
        if check and has_several and can_evaluate:
            check_few(
                f, self.params, self.x, ", or a `batch_size` of at least the number of examples"
            )

    @property
    def symmetric(self) -> bool:
        """Whether rows and columns are the same examples."""
        return self.x2 is None

    @errors.public
    def mv(self, v: jax.typing.ArrayLike) -> Float[Array, "..."]:
        """K v.

        Cost: about five forward passes over the data for each column.

        Args:
            v: `[(m p)]`, shaped like the outputs `[m ...]`, or a matrix `[(m p) k]`.

        Returns:
            The product, in the layout of v.

        Raises:
            InvalidInputError: When v has another shape.
        """
        v = jnp.asarray(as_array(v, "v"), at_least_float32(self.dtype))
        n_columns = self.shape[1]
        m = n_columns // int(np.prod(self.output_shape))
        like_outputs = (m, *self.output_shape)  # [m ...], in which the product is computed
        if v.shape == like_outputs:
            return run(_product, self, v)
        if v.shape == (n_columns,):
            product = run(_product, self, v.reshape(like_outputs))
            return product.reshape(-1)  # [n ...] -> [(n o)]
        if v.ndim == 2 and v.shape[0] == n_columns:
            # Column by column, so that the memory stays that of one product.
            return jax.lax.map(self.mv, v.T).T
        raise errors.InvalidInputError(
            expected=f"v of shape ({n_columns},), ({n_columns}, k) or {like_outputs}",
            got=f"shape {v.shape}",
            do=_ROWS,
        )

    def __matmul__(self, v: jax.typing.ArrayLike) -> Float[Array, "..."]:
        return self.mv(v)

    def __call__(self, v: jax.typing.ArrayLike) -> Float[Array, "..."]:
        """K v; see `mv`."""
        return self.mv(v)

    def outputs(self) -> Float[Array, "n *o"]:
        """f(params, x) on the row examples.

        Cost: one forward pass.
        """
        return run(_outputs, self)

    @errors.public
    def tangent(self, step: PyTree) -> Float[Array, "n *o"]:
        """J step, the change of the outputs on the row examples to first order.

        Cost: about two forward passes.

        Args:
            step: A tree like the parameters.

        Returns:
            `[n ...]`.

        Raises:
            InvalidInputError: When it is not like them.
        """
        structure, shapes = _structure_and_shapes(self.params)
        structure_got, shapes_got = _structure_and_shapes(step)
        if (structure, shapes) != (structure_got, shapes_got):
            # The first 300 characters: a network has hundreds of leaves.
            raise errors.InvalidInputError(
                expected=f"a tree like the parameters, {structure} of shapes {shapes}"[:300],
                got=f"{structure_got} of shapes {shapes_got}"[:300],
                do="Pass a step of the parameters, such as a difference of two checkpoints.",
            )
        return run(_tangent, self, step)

    @errors.public
    def cotangent(self, v: jax.typing.ArrayLike) -> PyTree:
        """J^T v for the row examples, a gradient: a preconditioner has no part in it.

        Cost: one forward and one backward pass.

        Args:
            v: `[n ...]`, like the outputs, or flat.

        Returns:
            A tree like the parameters.

        Raises:
            InvalidInputError: When v has another shape.
        """
        v = jnp.asarray(as_array(v, "v"))
        like_outputs = (self.n_examples, *self.output_shape)
        if v.shape not in ((self.shape[0],), like_outputs):
            raise errors.InvalidInputError(
                expected=f"v of shape ({self.shape[0]},) or {like_outputs}",
                got=f"shape {v.shape}",
                do=_ROWS,
            )
        return run(_cotangent, self, v.reshape(like_outputs))

    def __repr__(self) -> str:
        rows, columns = self.shape
        text = f"NTKOperator({rows} x {columns}, {self.dtype}, batch_size={self.batch_size}"
        if self.preconditioner.kind != "none":
            text += f", preconditioner={self.preconditioner.kind}"
        return text + ")"


def require_square(operator: object) -> None:
    """Refuse what is no operator of a set of examples with itself."""
    if isinstance(operator, NTKOperator) and operator.symmetric:
        return
    is_cross = isinstance(operator, NTKOperator)
    raise errors.InvalidInputError(
        expected="`operator` as NTKOperator(f, params, x) of the training examples",
        got="one of two sets of examples" if is_cross else type(operator).__name__,
        do="Leave x2 out; kernels that are arrays go to ntkdiag.predict.",
    )


def require_plain(operator: NTKOperator) -> None:
    """Refuse an operator with a preconditioner where steps of the parameters are computed."""
    kind = operator.preconditioner.kind
    if kind != "none":
        raise errors.InvalidInputError(
            expected="`operator` without a preconditioner: the step is that of least norm",
            got=f"one that is {kind}",
            do="Leave preconditioner= out of NTKOperator; top_spectrum, stability_margin and "
            "products take it.",
        )


def require_outputs(
    operator: NTKOperator, value: jax.typing.ArrayLike, name: str
) -> Float[Array, "n *o"]:
    """An argument that is shaped like the outputs and finite, in float32 at least."""
    array = jnp.asarray(as_array(value, name))
    shape = (operator.n_examples, *operator.output_shape)
    if array.shape != shape or not jnp.issubdtype(array.dtype, jnp.floating):
        raise errors.InvalidInputError(
            expected=f"`{name}` of shape {shape} in floating point, like the outputs of f",
            got=f"{array.dtype}{list(array.shape)}",
            do="Class numbers become targets with `jax.nn.one_hot`.",
        )
    if not isinstance(array, Tracer) and not np.isfinite(np.asarray(array)).all():
        raise errors.InvalidInputError(
            expected=f"finite `{name}`",
            got="NaN or Inf",
            do="Look for overflow, or drop these examples.",
        )
    return array.astype(at_least_float32(operator.dtype))


def gram_product(operator: NTKOperator, step: PyTree) -> PyTree:
    """J^T J step on the row examples, in one sweep over the microbatches instead of two."""
    return microbatches.gram(
        operator.f,
        operator.params,
        _batches(operator, operator.x),
        _in_dtypes_of_parameters(operator, step),
        operator.n_examples,
    )


def _product(operator: NTKOperator, v: Float[Array, "m *p"]) -> Float[Array, "n *o"]:
    """J(x) P^-1 (J(x2)^T v), from the right to the left."""
    columns = operator.x if operator.symmetric else operator.x2
    # J(x2)^T v, a tree like the parameters
    pulled = microbatches.cotangents(operator.f, operator.params, _batches(operator, columns), v)
    return _tangent(operator, operator.preconditioner.divide(pulled))


def _tangent(operator: NTKOperator, step: PyTree) -> Float[Array, "n *o"]:
    """J(x) step, in float32 at least."""
    # A derivative along the step gives the outputs, too; here they are not needed.
    _, change = microbatches.tangents(
        operator.f,
        operator.params,
        _batches(operator, operator.x),
        _in_dtypes_of_parameters(operator, step),
        operator.n_examples,
    )
    return change.astype(at_least_float32(operator.dtype))


def _cotangent(operator: NTKOperator, v: Float[Array, "n *o"]) -> PyTree:
    """J(x)^T v."""
    return microbatches.cotangents(operator.f, operator.params, _batches(operator, operator.x), v)


def _outputs(operator: NTKOperator) -> Float[Array, "n *o"]:
    """f(params, x)."""
    return microbatches.outputs(
        operator.f, operator.params, _batches(operator, operator.x), operator.n_examples
    )


def _batches(operator: NTKOperator, x: PyTree) -> PyTree:
    """Examples in microbatches, `[b size ...]`."""
    n = jax.tree.leaves(x)[0].shape[0]
    return microbatches.split(x, n, operator.batch_size)


def _in_dtypes_of_parameters(operator: NTKOperator, step: PyTree) -> PyTree:
    """A step as a tangent of the parameters, which has their dtypes."""
    return jax.tree.map(lambda d, p: d.astype(p.dtype), step, operator.params)


def _structure_and_shapes(tree: PyTree) -> tuple[TreeStructure, list[tuple[int, ...]]]:
    """What two trees have in common that are alike."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [jnp.shape(leaf) for leaf in leaves]


def require_one_output(outputs: PyTree, n: int) -> tuple[tuple[int, ...], np.dtype]:
    """Shape for one example, and dtype, of the one floating array that f has to return."""
    is_array = hasattr(outputs, "shape")
    if is_array and jnp.issubdtype(outputs.dtype, jnp.floating) and outputs.shape[:1] == (n,):
        return tuple(outputs.shape[1:]), outputs.dtype
    array = f"{outputs.dtype}{list(outputs.shape)}" if is_array else ""
    raise errors.InvalidInputError(
        expected=f"f to return one floating array with the {n} examples first",
        got=array or type(outputs).__name__,
        do="Select an output: functionalize(model, ..., output=lambda y: y[0]).",
    )
