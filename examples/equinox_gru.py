# %% [markdown]
# # A recurrent network, in Equinox
# The kernel of a GRU that reads a sequence of variable length: the mask is one of its inputs,
# spread by `unpack`. `python equinox_gru.py 128 50` makes it wider and its sequences longer.
#
# Takes about 15 seconds of processor time.

# %%
import sys

import equinox as eqx
import jax
import jax.numpy as jnp

import ntkdiag


class Classifier(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, inputs, width, classes, key):
        keys = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(inputs, width, key=keys[0])
        self.head = eqx.nn.Linear(width, classes, key=keys[1])

    def __call__(self, sequence, mask):
        def step(h, now):
            token, valid = now
            return jnp.where(valid, self.cell(token, h), h), None

        h, _ = jax.lax.scan(
            step, jnp.zeros(self.cell.hidden_size, sequence.dtype), (sequence, mask)
        )
        return self.head(h)


# %%
def case(width=16, length=10):
    keys = jax.random.split(jax.random.key(0), 3)
    lengths = jax.random.randint(keys[0], (8, 1), 3, length + 1)
    x = {
        "sequence": jax.random.normal(keys[1], (8, length, 4)),
        "mask": jnp.arange(length) < lengths,
    }
    return {"model": Classifier(4, width, 3, keys[2]), "x": x, "unpack": True}


def main(width=16, length=10):
    model, x, unpack = case(width, length).values()
    print(ntkdiag.selfcheck(model, x, unpack=unpack))
    fn = ntkdiag.functionalize(model, unpack=unpack)
    kernel = ntkdiag.ntk(*fn, x, per_leaf=True)
    for path, part in kernel.leaves.items():
        print(
            f"{path:16} {float(jnp.trace(part.array) / jnp.trace(kernel.array)):6.1%} of the trace"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
