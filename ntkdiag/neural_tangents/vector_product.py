"""NTK-vector products: J1 (J2^T v), without the kernel and without a Jacobian."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.arrays import with_arrays
from ntkdiag.call_f import outputs_of
from ntkdiag.linearization.taylor import linearization
from ntkdiag.neural_tangents.examples import as_arrays, check_outputs, check_parameters
from ntkdiag.neural_tangents.per_input import split_kwargs


@errors.public
def empirical_ntk_vp_fn(
    f: Callable[..., PyTree], x1: PyTree, x2: PyTree, params: PyTree, **apply_fn_kwargs: Any
) -> Callable[[PyTree], PyTree]:
    """The function v -> J(x1) J(x2)^T v: the NTK times a vector, without the NTK.

    f is linearized once, here; a product is then one backward pass over x2 and one forward pass
    over x1.
    Cost of a product: about two evaluations of f on x1 and x2; memory: their intermediate values.
    Source: Novak et al. 2022, arXiv:2206.08720, appendix L; neural-tangents linearizes again in
    every product.

    Args:
        f: `f(params, x, **kwargs)`, any pytree of real outputs. Examples may interact.
        x1: Row inputs, a pytree of arrays.
        x2: Column inputs; None stands for x1.
        params: Parameters.
        **apply_fn_kwargs: Passed to f; see `empirical_ntk_fn`.

    Returns:
        A function of cotangents like f(params, x2) that returns a tree like f(params, x1). It can
        be compiled.

    Raises:
        InvalidInputError: Parameters or outputs cannot be differentiated. The product raises it for
            cotangents that are not like f(params, x2).

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> product = empirical_ntk_vp_fn(lambda w, x: x @ w, x, None, jnp.ones(2))
        >>> product(jnp.array([1.0, 0.0])).tolist()
        [5.0, 11.0]
    """
    x2 = x2 if jax.tree.leaves(x2) else None  # a tree of None, too
    x1, x2, params = as_arrays(x1, x2, params)
    apply_fn_kwargs = with_arrays(apply_fn_kwargs, "kwargs")
    check_parameters(params, check=True)
    with jax.default_matmul_precision("highest"):
        kwargs1, kwargs2 = split_kwargs(apply_fn_kwargs, x1, x2)
        outputs, push, _ = linearization(lambda p: outputs_of(f, p, x1, kwargs1), params)
        column = lambda p: outputs_of(f, p, x1 if x2 is None else x2, kwargs2)
        outputs2, pull = jax.vjp(column, params)
    check_outputs(outputs)

    @errors.called("ntk_vp_fn(cotangents)")
    def product(cotangents: PyTree) -> PyTree:
        cotangents = with_arrays(cotangents, "cotangents")
        _check_cotangents(cotangents, outputs2)
        with jax.default_matmul_precision("highest"):
            return push(*pull(jax.tree.map(jnp.asarray, cotangents)))

    return product


def _check_cotangents(cotangents: PyTree, outputs: PyTree) -> None:
    """One number for each output, of its shape and dtype."""
    wanted, got = _described(outputs), _described(cotangents)
    if wanted != got:
        raise errors.InvalidInputError(
            expected=f"cotangents like f(params, x2): {wanted}",
            got=got,
            do="A product takes one number for each output on x2.",
        )


def _described(tree: PyTree) -> str:
    """Dtypes and shapes of the leaves, and the tree."""
    leaves = []
    for leaf in jax.tree.leaves(tree):
        leaves.append(f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}")
    return f"{', '.join(leaves) or 'nothing'} in {jax.tree.structure(tree)}"
