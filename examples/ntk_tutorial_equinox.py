# %% [markdown]
# # The neural tangent kernel tutorial of torch.func with Equinox
# The steps of <https://docs.pytorch.org/tutorials/intermediate/neural_tangent_kernels.html>, in
# their order.
#
# Takes about 20 seconds of processor time.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp

import ntkdiag.neural_tangents as nt

keys = jax.random.split(jax.random.key(0), 6)
x_train, x_test = (
    jax.random.normal(keys[0], (20, 3, 32, 32)),
    jax.random.normal(keys[1], (5, 3, 32, 32)),
)
layers = [eqx.nn.Conv2d(3, 32, 3, key=keys[2]), eqx.nn.Lambda(jax.nn.relu)]
layers += [
    eqx.nn.Conv2d(32, 32, 3, key=keys[3]),
    eqx.nn.Lambda(jax.nn.relu),
    eqx.nn.Conv2d(32, 32, 3, key=keys[4]),
]
net = eqx.nn.Sequential([*layers, eqx.nn.Lambda(jnp.ravel), eqx.nn.Linear(21632, 10, key=keys[5])])
params, static = eqx.partition(
    net, eqx.is_inexact_array
)  # a module as parameters: any pytree will do
f = lambda params, x: jax.vmap(eqx.combine(params, static))(
    x
)  # the module takes one example, f the batch

# %% [markdown]
# Method 1, Jacobian contraction. `compute=` is a choice of axes; a trace is a mean here, and a sum
# there.
AXES = {"full": ((), ()), "trace": ((-1,), ()), "diagonal": ((), (-1,))}


def ntk(implementation, compute, f=f, x1=x_train, x2=x_test):
    return nt.empirical_ntk_fn(f, *AXES[compute], vmap_axes=0, implementation=implementation)(
        x1, x2, params
    )


found = [(compute, ntk(1, compute)) for compute in AXES]
print({compute: kernel.shape for compute, kernel in found})

# %% [markdown]
# Method 2, NTK-vector products; what AUTO takes for this network; inputs that are a tree.
found += [("full", ntk(2, "full")), *((compute, ntk(0, compute)) for compute in AXES)]
trees = [(x / 4, {"rest": x * 0.75}) for x in (x_train, x_test)]
found += [("full", ntk(0, "full", lambda params, x: f(params, x[0] + x[1]["rest"]), *trees))]


# %% [markdown]
# The tutorial's own function, for comparison.
@jax.jit
def jacobian_contraction(x1, x2):
    single = jax.vmap(jax.jacrev(lambda params, x: eqx.combine(params, static)(x)), (None, 0))
    pairs = zip(*(jax.tree.leaves(single(params, x)) for x in (x1, x2)), strict=True)
    return sum(
        jnp.einsum("naf,mbf->nmab", a.reshape(20, 10, -1), b.reshape(5, 10, -1)) for a, b in pairs
    )


full = jacobian_contraction(x_train, x_test)
wanted = {
    "full": full,
    "trace": jnp.einsum("nmaa->nm", full) / 10,
    "diagonal": jnp.einsum("nmaa->nma", full),
}
assert all(
    jnp.allclose(kernel, wanted[compute], rtol=1e-4, atol=1e-4 * full.max())
    for compute, kernel in found
)
print("explicit, implicit, AUTO and a tree of inputs agree with jacobian_contraction")
