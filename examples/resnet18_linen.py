# %% [markdown]
# # A ResNet-18 in Flax linen: running statistics, those of a batch held fixed, and joint ones
# `python resnet18_linen.py 64 32` is the full size;
# `ntkdiag selfcheck resnet18_linen.py:case` checks it.
#
# Takes about 50 seconds of processor time.

# %%
import functools
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp

import ntkdiag


class Block(nn.Module):
    features: int
    strides: int

    @nn.compact
    def __call__(self, x, train):
        conv = functools.partial(nn.Conv, self.features, use_bias=False)
        norm = functools.partial(nn.BatchNorm, use_running_average=not train)
        y = norm()(conv((3, 3))(nn.relu(norm()(conv((3, 3), self.strides)(x)))))
        if x.shape != y.shape:
            x = norm()(conv((1, 1), self.strides)(x))
        return nn.relu(x + y)


class ResNet18(nn.Module):
    width: int = 64

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.relu(nn.BatchNorm(not train)(nn.Conv(self.width, (3, 3), use_bias=False)(x)))
        for stage, strides in enumerate((1, 2, 2, 2)):
            x = Block(self.width * 2**stage, strides)(x, train)
            x = Block(self.width * 2**stage, 1)(x, train)
        return nn.Dense(10)(jnp.mean(x, axis=(1, 2)))


# %%
def case(width=8, size=16):
    x = jax.random.normal(jax.random.key(0), (6, size, size, 3))
    return {
        "model": ResNet18(width),
        "variables": ResNet18(width).init(jax.random.key(1), x, train=False),
        "x": x,
    }


def main(width=8, size=16):
    model, variables, x = case(width, size).values()
    print(ntkdiag.selfcheck(model, variables, x))
    joint = ntkdiag.ntk(*ntkdiag.functionalize(model, variables, mode="train"), x)
    running = ntkdiag.ntk(*ntkdiag.functionalize(model, variables), x)
    fixed = ntkdiag.ntk(*ntkdiag.functionalize(model, variables, mode="train", statistics=x), x)
    for kernel in (running, fixed, joint):
        print(
            kernel.convention.mode,
            f"{ntkdiag.drift(kernel.array, joint.array).distance:.3f} from the last",
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
