# %% [markdown]
# # The neural tangent kernel tutorial of torch.func with Flax
# The steps of <https://docs.pytorch.org/tutorials/intermediate/neural_tangent_kernels.html>, in
# their order. About 20 seconds of processor time.

# %%
import flax.linen as nn
import jax
import jax.numpy as jnp

import ntkdiag.neural_tangents as nt


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(32, (3, 3), padding="VALID")(x))
        x = nn.relu(nn.Conv(32, (3, 3), padding="VALID")(x))
        x = nn.Conv(32, (3, 3), padding="VALID")(x)
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


keys = jax.random.split(jax.random.key(0), 3)
x_train = jax.random.normal(keys[0], (20, 32, 32, 3))
x_test = jax.random.normal(keys[1], (5, 32, 32, 3))
net = CNN()
params = net.init(keys[2], x_train)["params"]
f = lambda params, x: net.apply({"params": params}, x)  # takes the batch

# %% [markdown]
# `compute=` of the tutorial is a choice of axes. A trace is a mean here, and a sum there. Both of
# its methods, Jacobian contraction and NTK-vector products, are one call.
AXES = {"full": ((), ()), "trace": ((-1,), ()), "diagonal": ((), (-1,))}
kernels = {
    compute: nt.empirical_ntk_fn(f, *axes, vmap_axes=0)(x_train, x_test, params)
    for compute, axes in AXES.items()
}
print({compute: kernel.shape for compute, kernel in kernels.items()})


# %% [markdown]
# The tutorial's own function, for comparison.
@jax.jit
def jacobian_contraction(x1, x2):
    single = jax.vmap(jax.jacrev(lambda params, x: f(params, x[None])[0]), (None, 0))
    total = 0
    for a, b in zip(*(jax.tree.leaves(single(params, x)) for x in (x1, x2)), strict=True):
        total += jnp.einsum("naf,mbf->nmab", a.reshape(20, 10, -1), b.reshape(5, 10, -1))
    return total


full = jacobian_contraction(x_train, x_test)
subscripts = {"full": "nmab->nmab", "trace": "nmaa->nm", "diagonal": "nmaa->nma"}
for compute, kernel in kernels.items():
    expected = jnp.einsum(subscripts[compute], full) / (10 if compute == "trace" else 1)
    assert jnp.allclose(kernel, expected, rtol=1e-4, atol=1e-4 * full.max()), compute
print("all of them agree with jacobian_contraction")
