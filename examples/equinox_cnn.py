# %% [markdown]
# # A convolutional network with state, in Equinox
# Batch normalisation keeps its statistics in an `eqx.nn.State`, dropout takes a key; both are held
# fixed for a kernel. `python equinox_cnn.py 64 32` makes it wider and its images larger.
#
# Takes about 30 seconds of processor time.

# %%
import sys

import equinox as eqx
import jax
import jax.numpy as jnp

import ntkdiag


class CNN(eqx.Module):
    convs: list
    norms: list
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, width, key):
        keys = jax.random.split(key, 4)
        sizes = ((3, width), (width, 2 * width), (2 * width, 4 * width))
        self.convs = [
            eqx.nn.Conv2d(i, o, 3, 2, 1, key=k) for (i, o), k in zip(sizes, keys, strict=False)
        ]
        self.norms = [eqx.nn.BatchNorm(o, axis_name="batch", mode="batch") for _, o in sizes]
        self.dropout = eqx.nn.Dropout(0.2)
        self.head = eqx.nn.Linear(4 * width, 10, key=keys[3])

    def __call__(self, x, state, *, key=None):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x, state = norm(conv(x), state)
            x = jax.nn.relu(x)
        return self.head(self.dropout(x.mean(axis=(1, 2)), key=key)), state


# %%
def case(width=8, size=16):
    model, state = eqx.nn.make_with_state(CNN)(width, jax.random.key(1))
    x = jax.random.normal(jax.random.key(0), (8, 3, size, size))
    # One training step, so that the running statistics are those of some data.
    step = jax.vmap(
        lambda x: model(x, state, key=jax.random.key(2)), axis_name="batch", out_axes=(0, None)
    )
    return {"model": model, "x": x, "state": step(x)[1]}


def main(width=8, size=16):
    model, x, state = case(width, size).values()
    print(ntkdiag.selfcheck(model, x, state=state))
    key = jax.random.key(3)
    for options in ({}, {"mode": "dropout"}, {"mode": "train", "statistics": x}, {"mode": "train"}):
        fn = ntkdiag.functionalize(model, state=state, key=key, **options)
        examples = "joint" if fn.mode == "train" else "independent"
        kernel = ntkdiag.ntk(*fn, x, examples=examples)
        print(
            f"mode {fn.mode:24} examples {examples:12} trace {float(jnp.trace(kernel.array)):9.3f}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
