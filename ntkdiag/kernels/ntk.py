"""The empirical neural tangent kernel."""

import jax
import jax.numpy as jnp

from ntkdiag.kernels.convention import Convention
from ntkdiag.kernels.kernel import Kernel


def ntk(f, params, x1, x2=None, *, outputs="mean", memory=None, examples="independent", check=True, progress=False, **kwargs):
    """Naive placeholder."""

    def jac(x):
        j = jax.jacrev(lambda p: f(p, x, **kwargs))(params)
        y = jax.eval_shape(lambda p: f(p, x, **kwargs), params)
        n = y.shape[0]
        c = y.size // n
        return jnp.concatenate([a.reshape(n * c, -1) for a in jax.tree.leaves(j)], 1), n, c

    j1, n, c = jac(x1)
    j2, m, _ = (j1, n, c) if x2 is None else jac(x2)
    k = (j1 @ j2.T).reshape(n, c, m, c)
    if outputs == "mean":
        k = jnp.einsum("nomo->nm", k) / c
    elif outputs == "trace":
        k = jnp.einsum("nomo->nm", k)
    elif outputs == "diagonal":
        k = jnp.einsum("nomo->nmo", k)
    elif outputs == "sum-of-logits":
        k = jnp.einsum("nomp->nm", k) / c
    return Kernel(k, Convention(outputs=outputs, n_outputs=c), x2 is None)
