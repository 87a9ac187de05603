"""The losses of single examples as a function of the parameters: g(params, (x, y))_i = l_i.

    g = loss after f        one number for each example, with its label among its inputs

Its tangent kernel is the Gram matrix of the gradients of single examples. So every function that
takes f also takes g: the engine finds how each parameter is used through f and loss in one piece,
and differentiates one output for each example, however many f has.

    l_i = (N / D) sum_t w_it l(f_it, y_it)

has the mean L over the N examples: D and the mean of the weights are those of the whole batch, and
are worked out once, when the labels are read.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PyTree

from ntkdiag import errors
from ntkdiag.arrays import as_examples, as_labels, with_arrays
from ntkdiag.call_f import running
from ntkdiag.jaxtools import arguments
from ntkdiag.jaxtools.caching import Cache, hashable
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.jaxtools.tracing import is_traced, staging
from ntkdiag.losses import Loss
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.losses.loss_argument import LossLike, require_loss
from ntkdiag.losses.targets import Weighted
from ntkdiag.matrix_free.operator import require_one_output

# One g for one f and loss, so that what was compiled for it is found again.
_KEPT = Cache()
# Examples on which a loss of the user is looked at.
_FEW = 4


@dataclasses.dataclass(frozen=True)
class ExampleLosses:
    """g(params, (x, labels))_i, the loss of each example, `[n]`; made by `example_losses`.

    Attributes:
        f: `f(params, x, **kwargs)`, with one array of outputs.
        loss: The loss.
        scale: N / D: what the terms of an example are multiplied by, so that their mean is L.
        n_outputs: C, outputs of one example.
    """

    f: Callable[..., PyTree]
    loss: Loss
    scale: float
    n_outputs: int

    def __call__(self, params: PyTree, examples: PyTree, **kwargs: Any) -> Float[Array, " n"]:
        """The losses of some examples."""
        x, labels = examples
        outputs = self.f(params, x, **kwargs)
        outputs = outputs.astype(at_least_float32(outputs.dtype))
        return self.scale * self.loss.example_terms(outputs, labels)

    @property
    def mode(self) -> str:
        """The mode of the model."""
        return getattr(self.f, "mode", "unspecified")

    @property
    def joint(self) -> bool:
        """Whether the model gets the batch as a whole, so that examples may interact."""
        return getattr(self.f, "joint", False) is True


@errors.public
def example_losses(
    f: Callable[..., PyTree],
    params: PyTree,
    x: PyTree,
    y: PyTree,
    *,
    loss: LossLike,
    **kwargs: Any,
) -> tuple[ExampleLosses, tuple[PyTree, PyTree]]:
    """The loss of every example as a function of the parameters, and the examples it takes.

    g(params, (x, labels))_i = l_i, with the mean L over these examples: l_i = (N / D) sum_t w_it
    l(f_it, y_it). g can replace f: `ntk(g, params, examples)` is the gradient kernel,
    `plan(g, params, examples)` what that costs, and `NTKOperator(g, params, examples)` its products
    with vectors, where it does not fit into memory.

    Cost: tracing f once; of a loss of the user also f of four examples.

    Args:
        f: `f(params, x, **kwargs)`, with one array of outputs.
        params: Its parameters.
        x: Examples, an array or pytree of arrays; or their shapes.
        y: Their labels, as the loss takes them; `ntkdiag.losses.Weighted(y, weights)` with weights.
        loss: "mse", "cross_entropy", "sigmoid_cross_entropy", an object of `ntkdiag.losses`, or a
            function `loss(outputs, y)`, which has to be a mean or a sum over examples: l_i is then
            what it returns for example i alone.
        **kwargs: Passed to f.

    Returns:
        g, and the pair of x and labels as g takes them. It is the same g for the same f and loss.

    Raises:
        InvalidInputError: When no loss is named, labels do not fit the outputs, f returns no single
            array, or a loss of the user is no mean or sum over examples.

    Example:
        >>> import jax.numpy as jnp
        >>> f = lambda w, x: x @ w
        >>> x, y = jnp.eye(2), jnp.array([[1.0], [3.0]])
        >>> g, examples = example_losses(f, jnp.zeros((2, 1)), x, y, loss="mse")
        >>> print(g(jnp.zeros((2, 1)), examples))
        [0.5 4.5]
    """
    arguments.check_function(f)
    named = require_loss(loss, "the gradient of an example")
    x = as_examples(x)
    n = arguments.batch_size(x, "x")
    with running():
        outputs = jax.eval_shape(lambda p, z: f(p, z, **kwargs), with_arrays(params, "params"), x)
    output_shape, _ = require_one_output(outputs, n)
    labels = _labels(named, y, (n, *output_shape))
    if isinstance(named, CustomLoss):
        named.require_runs(outputs.shape, outputs.dtype, labels)
        _require_separable(named, lambda z: f(params, z, **kwargs), x, labels)
    scale = float(n / named.denominator_for(outputs.shape))
    n_outputs = int(np.prod(output_shape))
    key = hashable(named), scale, n_outputs
    g = _KEPT.get(f, key)
    if g is None:
        g = ExampleLosses(f, named, scale, n_outputs)
        _KEPT.put(f, key, g)
    return g, (x, labels)


def columns_of(g: ExampleLosses, params: PyTree, x2: PyTree, y2: PyTree, kwargs: dict) -> PyTree:
    """Other examples as g takes them: their losses have the scale of those of the rows."""
    x2 = as_examples(x2, "x2")
    n = arguments.batch_size(x2, "x2")
    with running():
        outputs = jax.eval_shape(lambda p, z: g.f(p, z, **kwargs), params, x2)
    output_shape, _ = require_one_output(outputs, n)
    return x2, _labels(g.loss, y2, (n, *output_shape))


def with_keywords(f: Callable[..., PyTree], kwargs: dict) -> Callable[..., PyTree]:
    """f with its keyword arguments; f itself without: what was compiled for it is found again."""
    return functools.partial(f, **kwargs) if kwargs else f


def _labels(loss: Loss, y: PyTree, shape: tuple[int, ...]) -> PyTree:
    """Labels as the loss reads them, or their shapes where only these are known."""
    if arguments.has_shapes_alone(y):
        return jax.eval_shape(lambda y: loss.read(y, shape), y)
    read = loss.read(as_labels(y) if not isinstance(y, Weighted) else y, shape)
    lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(read)}
    if lengths <= {shape[:1]}:
        return read
    raise errors.InvalidInputError(
        expected=f"labels of the {shape[0]} examples, examples first",
        got=", ".join(str(tuple(leaf.shape)) for leaf in jax.tree.leaves(read)),
        do="Each array in y has a row for each example.",
    )


def _require_separable(
    loss: CustomLoss, f: Callable[[PyTree], Array], x: PyTree, labels: PyTree
) -> None:
    """Refuse a loss that is neither a mean nor a sum over examples: one alone has no part in it."""
    if arguments.has_shapes_alone(x, labels) or is_traced(x, labels) or staging():
        return
    few_x, few_labels = jax.tree.map(lambda leaf: leaf[:_FEW], (x, labels))
    outputs = f(few_x)
    if is_traced(outputs):  # of parameters that are traced
        return
    alone = np.asarray(loss.example_terms(outputs, few_labels), np.float64)
    together = float(loss(outputs, few_labels))
    if not np.isfinite(together):  # of parameters or inputs that `ntk` refuses
        return
    tolerance = float(jnp.finfo(outputs.dtype).eps) ** 0.5 * np.abs(alone).sum()
    distance = min(abs(together - alone.mean()), abs(together - alone.sum()))
    if np.isfinite(alone).all() and distance <= tolerance:
        return
    raise errors.InvalidInputError(
        expected="a loss that is the mean, or the sum, over examples of what it is for each alone",
        got=f"{together:.6g} for {len(alone)} examples, whose mean alone is {alone.mean():.6g}",
        do="A denominator that sums over the batch, such as that of a mask, couples the examples: "
        "pass a loss of ntkdiag.losses with `Weighted(y, weights)`, or divide by the number of "
        "examples.",
    )


@dataclasses.dataclass(frozen=True)
class FunctionSpaceLoss:
    """sum_i l_i as a function of the outputs of all examples, with its derivatives in float64."""

    loss: Loss  # the loss
    labels: PyTree  # labels as it reads them
    shape: tuple[int, ...]  # of the outputs, `[n ...]`

    def terms(self, outputs: Float64[np.ndarray, "columns k"]) -> Float64[np.ndarray, "columns n"]:
        """l_i for rows of outputs of all examples."""
        with _in_float64():
            return np.asarray(self._compiled.terms(jnp.asarray(outputs), self.labels))

    def gradient(
        self, outputs: Float64[np.ndarray, "columns k"]
    ) -> Float64[np.ndarray, "columns k"]:
        """g for rows of outputs of all examples."""
        with _in_float64():
            return np.asarray(self._compiled.gradient(jnp.asarray(outputs), self.labels))

    def hessians(self, outputs: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, "n c c"]:
        """H, one block for each example."""
        with _in_float64():
            rows = jnp.asarray(outputs).reshape(self.shape[0], -1)  # [k] -> [n c]
            return np.asarray(self._compiled.hessians(rows, self.labels))

    @functools.cached_property
    def _compiled(self) -> "_Compiled":
        shape_of_one = self.shape[1:]

        def terms(flat: jax.Array, labels: PyTree) -> jax.Array:
            return self.loss.example_terms(flat.reshape(-1, *shape_of_one), labels)

        def total(flat: jax.Array, labels: PyTree) -> jax.Array:
            return terms(flat, labels).sum()

        def of_one(flat: jax.Array, labels: PyTree) -> jax.Array:
            return total(flat, jax.tree.map(lambda leaf: leaf[None], labels))

        return _Compiled(
            terms=jax.jit(jax.vmap(terms, (0, None))),
            gradient=jax.jit(jax.vmap(jax.grad(total), (0, None))),
            hessians=jax.jit(jax.vmap(jax.hessian(of_one))),
        )


@contextlib.contextmanager
def _in_float64() -> Iterator[None]:
    """Float64 beside labels in float32, whatever the session forbids in its own code."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


class _Compiled(NamedTuple):
    """The functions of a loss, of outputs and labels."""

    terms: Callable[..., jax.Array]
    gradient: Callable[..., jax.Array]
    hessians: Callable[..., jax.Array]
