"""The gradient kernel: the Gram matrix of the gradients of single examples' losses."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.engine import Memory, ntk
from ntkdiag.gradients.example_losses import ExampleLosses, columns_of, example_losses
from ntkdiag.jaxtools.tracing import is_traced
from ntkdiag.kernel.kernel import Kernel, digest
from ntkdiag.losses.loss_argument import LossLike


@errors.public
def gradient_kernel(
    f: Callable[..., PyTree],
    params: PyTree,
    x: PyTree,
    y: PyTree,
    *,
    loss: LossLike,
    x2: PyTree = None,
    y2: PyTree = None,
    preconditioner: PyTree = None,
    per_leaf: bool | str | Sequence[str] = False,
    examples: Literal["independent", "joint"] | None = None,
    memory: Memory | None = None,
    **kwargs: Any,
) -> Kernel:
    """The Gram matrix of the gradients of single examples, G[n, m] = <grad l_n, P^-1 grad l_m>.

    l_n is the loss of example n, with the mean L over the rows: the mean of G is then the squared
    gradient of L, and G is the tangent kernel with its outputs contracted by the derivative of the
    loss, G[n, m] = sum_op l'_no K[n,o,m,p] l'_mp. It is n x m however many outputs (classes,
    positions) there are. Where gradients of single examples are formed because that is faster, it
    is for a block of examples at a time, within `memory`.

    `analysis.noise_scale` gives the noise of the gradient of a batch, `analysis.self_influence`
    mislabelled and hard examples.

    Args:
        f: `f(params, x, **kwargs)`, with one array of outputs.
        params: As for `ntk`.
        x: Row examples, an array or pytree of arrays with the example axis first.
        y: Their labels, as the loss takes them; `ntkdiag.losses.Weighted(y, weights)` with weights.
        loss: "mse", "cross_entropy", "sigmoid_cross_entropy", an object of `ntkdiag.losses`, or a
            function `loss(outputs, y)` that is a mean or a sum over examples. The weights of a
            batch, and the labels it ignores, count as in L: an example with twice the weight has
            twice the gradient.
        x2: Column examples; None stands for x.
        y2: Their labels.
        preconditioner: P, as `ntk` takes it: the metric of the optimizer.
        per_leaf: As for `ntk`: kernels of single parameters, or groups of them, that sum to G.
        examples: As for `ntk`.
        memory: As for `ntk`.
        **kwargs: Passed to f.

    Returns:
        A `Kernel` with array `[n m]`, whose convention has the reduction "gradient".

    Raises:
        InvalidInputError: As `ntk` and `example_losses`; or one of x2 and y2 is there alone.
        UnsupportedModelError: JAX cannot differentiate f or the loss in reverse mode.
        ExamplesInteractError: Examples interact and are not asked to be differentiated jointly.
        MemoryBudgetError: The budget is too small even for one example at a time.

    Cost: one backward pass over the n + m examples, and the products of their factors: of GPT-2
    with 1024 tokens 1.001 of a pass, both together. Where `memory` does not hold the factors of all
    examples, some are differentiated again. `plan` gives the numbers, for
    `example_losses(f, params, x, y, loss=loss)`.

    Source: Jacot et al. 2018, arXiv:1806.07572, contracted with the derivative of the loss; Pruthi
    et al. 2020, arXiv:2002.08484 (TracIn), use its entries.

    Example:
        >>> import jax.numpy as jnp, ntkdiag
        >>> f = lambda w, x: x @ w
        >>> x, y = jnp.array([[1.0, 0.0], [1.0, 2.0]]), jnp.array([[1.0], [3.0]])
        >>> G = ntkdiag.gradient_kernel(f, jnp.zeros((2, 1)), x, y, loss="mse")
        >>> print(G.array)  # residuals -1 and -3 times x x^T
        [[ 1.  3.]
         [ 3. 45.]]
    """
    if (x2 is None) != (y2 is None):
        raise errors.InvalidInputError(
            expected="x2 and y2 together",
            got="x2 alone" if y2 is None else "y2 alone",
            do="The columns are examples with their labels, like the rows.",
        )
    g, rows = example_losses(f, params, x, y, loss=loss, **kwargs)
    columns = None if x2 is None else columns_of(g, params, x2, y2, kwargs)
    kernel = ntk(
        g,
        params,
        rows,
        columns,
        preconditioner=preconditioner,
        per_leaf=per_leaf,
        examples=examples,
        memory=memory,
        **kwargs,
    )
    return _named(kernel, g, rows[0])


def _named(kernel: Kernel, g: ExampleLosses, x: PyTree) -> Kernel:
    """The tangent kernel of the losses with the convention it has as one of f."""
    convention = dataclasses.replace(
        kernel.convention,
        reduction="gradient",
        n_outputs=g.n_outputs,
        # Of the inputs alone, like that of a tangent kernel of the same examples.
        probe=None if is_traced(x) else digest(x),
    )
    leaves = kernel.leaves
    if leaves is not None:
        leaves = {path: _named(leaf, g, x) for path, leaf in leaves.items()}
    return dataclasses.replace(kernel, convention=convention, leaves=leaves)
