# %% [markdown]
# # The neural tangent kernel tutorial of torch.func with Flax
# The steps of <https://docs.pytorch.org/tutorials/intermediate/neural_tangent_kernels.html>, in
# their order.
#
# Takes about 30 seconds of processor time.

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
x_train, x_test = (
    jax.random.normal(keys[0], (20, 32, 32, 3)),
    jax.random.normal(keys[1], (5, 32, 32, 3)),
)
net = CNN()
params = net.init(keys[2], x_train)["params"]  # a dict of dicts: any pytree will do
f = lambda params, x: net.apply(
    {"params": params}, x
)  # takes the batch; `vmap_axes=0` is what fnet_single is there

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
trees = [{"image": x / 2, "scale": (jnp.full((len(x), 1, 1, 1), 2.0),)} for x in (x_train, x_test)]
found += [("full", ntk(0, "full", lambda params, x: f(params, x["image"] * x["scale"][0]), *trees))]


# %% [markdown]
# The tutorial's own function, for comparison.
@jax.jit
def jacobian_contraction(x1, x2):
    single = jax.vmap(jax.jacrev(lambda params, x: f(params, x[None])[0]), (None, 0))
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
