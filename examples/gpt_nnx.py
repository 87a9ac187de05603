# %% [markdown]
# # A GPT-shaped decoder in Flax NNX: the kernel of every sequence's loss, whole and through LoRA
# `python gpt_nnx.py 768 12 50304` has the shape of GPT-2.
#
# Takes about 50 seconds of processor time.

# %%
import sys

import jax
import optax
from flax import nnx

import ntkdiag


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(
            width // 16, width, decode=False, dropout_rate=0.1, rngs=rngs
        )
        self.up = nnx.LoRALinear(width, 4 * width, lora_rank=2, rngs=rngs)
        self.down = nnx.LoRALinear(4 * width, width, lora_rank=2, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norms[0](x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class GPT(nnx.Module):
    def __init__(self, width, depth, vocabulary, length, rngs):
        self.tokens = nnx.Embed(vocabulary, width, rngs=rngs)
        self.positions = nnx.Param(0.02 * rngs.params.normal((length, width)))
        self.blocks = nnx.List([Block(width, rngs) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, ids):
        x = self.tokens(ids) + self.positions
        return self.tokens.attend(self.norm(nnx.Sequential(*self.blocks)(x)))


# %%
def case(width=32, depth=2, vocabulary=64, length=16, examples=6):
    ids = jax.random.randint(jax.random.key(0), (examples, length + 1), 0, vocabulary)
    x = {"ids": ids[:, :-1], "labels": ids[:, 1:]}
    next_token = lambda logits, x: optax.softmax_cross_entropy_with_integer_labels(
        logits, x["labels"]
    ).mean(axis=1)
    model = GPT(width, depth, vocabulary, length, nnx.Rngs(1))
    return {"model": model, "x": x, "inputs": "ids", "output": next_token}


def main(width=32, depth=2, vocabulary=64):
    model, x, inputs, output = case(width, depth, vocabulary).values()
    print(ntkdiag.selfcheck(model, x, mode="dropout", inputs=inputs, output=output))
    for kind in (nnx.Param, nnx.LoRAParam):
        fn = ntkdiag.functionalize(model, inputs=inputs, output=output, trainable=kind)
        print(kind.__name__, ntkdiag.spectrum(ntkdiag.ntk(*fn, x)))
    logits = ntkdiag.functionalize(model, inputs=inputs, output=lambda y: y[:, -1])
    print("last token:", ntkdiag.ntk(*logits, x, reduction=ntkdiag.kernel.RandomProjections(4)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
