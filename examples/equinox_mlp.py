# %% [markdown]
# # An MLP, in Equinox
# The kernel of the whole network, of its last layer, and of its biases: the argument `trainable` is
# all that changes. `python equinox_mlp.py 1024 4` makes it wider and deeper.
#
# Takes about 10 seconds of processor time.

# %%
import sys

import equinox as eqx
import jax
import jax.numpy as jnp

import ntkdiag
from ntkdiag.models.optax_labels import labelled


def case(width=32, depth=2):
    model = eqx.nn.MLP(8, 3, width, depth, activation=jax.nn.gelu, key=jax.random.key(1))
    return {"model": model, "x": jax.random.normal(jax.random.key(0), (12, 8))}


# %%
def main(width=32, depth=2):
    model, x = case(width, depth).values()
    print(ntkdiag.selfcheck(model, x))
    params = eqx.filter(model, eqx.is_inexact_array)
    labels = jax.tree.map(
        lambda leaf: "weights" if leaf.ndim > 1 else "biases", params
    )  # as for optax.multi_transform
    last = eqx.tree_at(
        lambda m: m.layers[-1], jax.tree.map(lambda _: False, model), replace_fn=lambda _: True
    )
    choices = {
        "everything": None,
        "the last layer, by glob": f"layers/{depth}/*",
        "the last layer, by filter spec": last,
        "biases, by the labels of Optax": labelled(labels, "biases"),
        "matrices, by predicate": lambda leaf: leaf.ndim > 1,
    }
    for name, trainable in choices.items():
        fn = ntkdiag.functionalize(model, trainable=trainable)
        print(f"{name:32} trace {float(jnp.trace(ntkdiag.ntk(*fn, x).array)):8.3f}   {fn}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
