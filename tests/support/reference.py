"""The naive dense oracle: a few lines per quantity, sharing nothing with the package; and how closely it is met."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np

RELATIVE = {np.dtype(np.float64): 1e-10, np.dtype(np.float32): 1e-5}
# It runs once: no more of the compiler than it takes.
_PLAIN = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}


def jacobian(f, params, x, **kwargs):
    """Dense Jacobian [N, O, P] of every output with respect to every parameter, float64, leaf order of jax.tree."""
    with jax.enable_x64(True):
        params = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), params)
        x = jax.tree.map(
            lambda a: jnp.asarray(a, jnp.float64) if np.issubdtype(a.dtype, np.floating) else a, x
        )

        def flat(p):
            leaves = [y.reshape(y.shape[0], -1) for y in jax.tree.leaves(f(p, x, **kwargs))]
            return jnp.concatenate(leaves, axis=1)

        jac = jax.jit(jax.jacrev(flat), compiler_options=_PLAIN)(params)
        n, o = jax.eval_shape(flat, params).shape
        return np.concatenate(
            [np.asarray(leaf).reshape(n, o, -1) for leaf in jax.tree.leaves(jac)], axis=2
        )


def ntk(f, params, x1, x2=None, **kwargs):
    """Dense NTK [n o m p] in float64."""
    j1 = jacobian(f, params, x1, **kwargs)
    j2 = j1 if x2 is None else jacobian(f, params, x2, **kwargs)
    return np.einsum("noP,mpP->nomp", j1, j2, optimize=True)


def relative_error(got, want):
    """max |got - want| / max |want|."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-300))


def assert_close(got, want, dtype=None):
    """Relative agreement to 1e-10 in float64 and 1e-5 in float32."""
    bound = RELATIVE[np.dtype(dtype or got.dtype)]
    error = relative_error(got, want)
    assert error <= bound, f"relative error {error:.2e} > {bound:.0e}"


@contextlib.contextmanager
def double(*trees):
    """In float64 mode, with the floating leaves of trees in float64."""
    with jax.enable_x64(True):
        cast = lambda a: jnp.asarray(a, jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a
        yield tuple(jax.tree.map(cast, tree) for tree in trees)
