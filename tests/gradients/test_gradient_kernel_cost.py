"""What the gradient kernel costs: operations counted, and what the plan keeps of an example."""

import functools

import jax
import numpy as np
import pytest

import ntkdiag
from benchmarks import workloads
from benchmarks.hook_cost import LanguageModel

GPT2 = LanguageModel()  # 124 million parameters


def language_model(params, x):
    return GPT2.apply({"params": params}, x)


def examples(n):
    """Shapes of n sequences of 1024 tokens, and of their labels."""
    tokens = jax.ShapeDtypeStruct((n, 1024), np.int32)
    return tokens, tokens


@functools.cache
def parameters():
    """Shapes of the 124 million parameters."""
    return jax.eval_shape(GPT2.init, jax.random.key(0), examples(1)[0])["params"]


def bytes_of(params):
    return sum(leaf.dtype.itemsize * int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))


def flops(f, *shapes):
    """Operations by XLA's count, which has the body of a loop once."""
    return jax.jit(f).lower(*shapes).cost_analysis()["flops"]


def backward_pass(n):
    """Operations of the gradient of the mean loss of n sequences."""

    def mean_loss(params, x, y):
        return ntkdiag.losses.CrossEntropy()(language_model(params, x), y)

    return flops(jax.grad(mean_loss), parameters(), *examples(n))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m"), [(2, 0), (2, 2)])
def test_a_language_model_costs_one_backward_pass(n, m):
    """Of N + M sequences of 1024 tokens, the products of their gradients in it: 1.001 of one pass."""

    def kernel(params, x, y, x2, y2):
        columns = {"x2": x2, "y2": y2} if m else {}
        return ntkdiag.gradient_kernel(
            language_model, params, x, y, loss="cross_entropy", memory="1TB", **columns
        ).array

    arguments = (*examples(n), *examples(max(m, 1)))
    assert 0.9 < flops(kernel, parameters(), *arguments) / backward_pass(n + m) < 1.05


@pytest.mark.slow
def test_plan_of_a_language_model_says_so():
    x, y = examples(16)
    g, rows = ntkdiag.example_losses(language_model, parameters(), x, y, loss="cross_entropy")
    plan = ntkdiag.plan(g, parameters(), rows, memory="64GB")
    assert plan.passes == 1
    assert 0.9 < plan.flops / backward_pass(16) < 1.05


@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "part", "passes"), [(64, 0.75, 1.45), (64, 0.5, 2.0), (64, 0.25, 5.9), (256, 0.25, 4.1)]
)
def test_plan_of_a_language_model_holds_part_of_its_gradients(n, part, passes):
    """In a part of what the gradients of all sequences would take, some are differentiated anew."""
    x, y = examples(n)
    g, rows = ntkdiag.example_losses(language_model, parameters(), x, y, loss="cross_entropy")
    of_all_gradients = n * bytes_of(parameters())
    plan = ntkdiag.plan(g, parameters(), rows, memory=int(part * of_all_gradients))
    assert plan.peak_bytes <= part * of_all_gradients
    # What is alive of them at once: blocks that are held, and one that passes by.
    assert (plan.blocks.held + 1) * plan.blocks.size < part * n
    assert plan.passes <= passes


@pytest.mark.parametrize(
    ("name", "kept"), [("W1", 0.003), ("W3", 0.18), ("W4", 1.0), ("W5", 0.6), ("W7", 0.4)]
)
def test_an_example_keeps_no_more_than_its_gradient(name, kept):
    """Leaf by leaf the factors of its gradient, or the gradient where that is smaller."""
    workload = workloads.get(name)
    f, params, n = workload.in_jax(), workload.params(), 64
    x = workload.module.inputs(np.random.default_rng(0), n, **workload.sizes)
    g, examples = ntkdiag.example_losses(f, params, x, np.zeros(n, int), loss="cross_entropy")
    one_gradient = bytes_of(params)
    plan = ntkdiag.plan(g, params, examples, memory="64GB")
    assert sum(row.bytes for row in plan.rows) <= kept * one_gradient
    # And never those of all examples at once, where that is too much.
    within = ntkdiag.plan(g, params, examples, memory=n * one_gradient // 4)
    assert within.peak_bytes < n * one_gradient / 4
