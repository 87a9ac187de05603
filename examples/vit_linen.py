# %% [markdown]
# # A vision transformer in Flax linen: which part of it carries the kernel?
# The depth is one `nn.scan`. `python vit_linen.py 384 12 224 16` is a ViT-S/16.
#
# Takes about 30 seconds of processor time.

# %%
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp

import ntkdiag


class Block(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x, deterministic):
        attention = nn.MultiHeadDotProductAttention(self.heads, name="attention")
        x = x + nn.Dropout(0.1, deterministic=deterministic)(attention(nn.LayerNorm()(x)))
        y = nn.Dense(4 * x.shape[-1], name="up")(nn.LayerNorm()(x))
        y = nn.Dense(x.shape[-1], name="down")(nn.gelu(y))
        return x + nn.Dropout(0.1, deterministic=deterministic)(y), None


class ViT(nn.Module):
    width: int
    depth: int
    patch: int

    @nn.compact
    def __call__(self, images, deterministic: bool):
        x = nn.Conv(
            self.width, (self.patch, self.patch), self.patch, padding="VALID", name="patches"
        )(images)
        x = x.reshape(len(x), -1, self.width)
        x = x + self.param("positions", nn.initializers.normal(0.02), x.shape[1:])
        axes = {"variable_axes": {"params": 0}, "split_rngs": {"params": True, "dropout": True}}
        layers = nn.scan(
            nn.remat(Block, static_argnums=2), in_axes=nn.broadcast, length=self.depth, **axes
        )
        x, _ = layers(self.width // 16, name="blocks")(x, deterministic)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(x).mean(axis=1))


# %%
def case(width=32, depth=2, size=16, patch=4):
    x = jax.random.normal(jax.random.key(0), (6, size, size, 3))
    model = ViT(width, depth, patch)
    return {
        "model": model,
        "variables": model.init(jax.random.key(1), x, deterministic=True),
        "x": x,
    }


def main(width=32, depth=2, size=16, patch=4):
    model, variables, x = case(width, depth, size, patch).values()
    print(ntkdiag.selfcheck(model, variables, x, mode="dropout", rngs=jax.random.key(2)))
    groups = ["**/attention/**", "**/up/*", "**/down/*", "patches/*", "head/*"]
    kernel = ntkdiag.ntk(*ntkdiag.functionalize(model, variables), x, per_leaf=groups)
    for name, part in kernel.leaves.items():
        print(
            f"{name:16} {float(jnp.trace(part.array) / jnp.trace(kernel.array)):6.1%} of the trace"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
