# %% [markdown]
# # A transformer in Equinox: `eqx.nn.Shared` embeddings, `eqx.filter_checkpoint`, `lax.scan`
#
# Takes about 30 seconds of processor time.

# %% `python equinox_transformer.py 256 8 1000` makes it larger.
import sys

import equinox as eqx
import jax
import jax.numpy as jnp

import ntkdiag


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    norms: list

    def __init__(self, width, key):
        self.attention = eqx.nn.MultiheadAttention(width // 16, width, key=key)
        self.mlp = eqx.nn.MLP(
            width, width, 4 * width, 1, jax.nn.gelu, key=jax.random.fold_in(key, 1)
        )
        self.norms = [eqx.nn.LayerNorm(width) for _ in range(2)]

    def __call__(self, x):
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y, mask=jnp.tri(len(x), dtype=bool))
        return x + jax.vmap(lambda token: self.mlp(self.norms[1](token)))(x)


class Transformer(eqx.Module):
    tied: eqx.nn.Shared
    blocks: Block

    def __init__(self, width, depth, vocabulary, key):
        pair = (
            eqx.nn.Embedding(vocabulary, width, key=key),
            eqx.nn.Linear(width, vocabulary, False, key=key),
        )
        self.tied = eqx.nn.Shared(pair, lambda pair: pair[1].weight, lambda pair: pair[0].weight)
        self.blocks = eqx.filter_vmap(lambda key: Block(width, key))(jax.random.split(key, depth))

    def __call__(self, ids):
        embed, head = self.tied()
        arrays, static = eqx.partition(self.blocks, eqx.is_array)
        layer = eqx.filter_checkpoint(lambda x, block: (eqx.combine(block, static)(x), None))
        return jax.vmap(head)(jax.lax.scan(layer, jax.vmap(embed)(ids), arrays)[0])


# %%
def case(width=32, depth=2, vocabulary=64):
    x = jax.random.randint(jax.random.key(0), (6, 12), 0, vocabulary)
    model = Transformer(width, depth, vocabulary, jax.random.key(1))
    return {"model": model, "x": x, "output": lambda y: y[:, -1]}


def main(width=32, depth=2, vocabulary=64):
    model, x, output = case(width, depth, vocabulary).values()
    print(ntkdiag.selfcheck(model, x, output=output))
    print(ntkdiag.spectrum(ntkdiag.ntk(*ntkdiag.functionalize(model, output=output), x)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
