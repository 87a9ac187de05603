"""Factors of the examples of a side, differentiated a few at a time."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import _compat
from ntkdiag.kernels import interaction, keywords
from ntkdiag.kernels.machine import Machine
from ntkdiag.kernels.task import Side, Task
from ntkdiag.kernels.ways import Way
from ntkdiag.tangents.factors import join, place, room

# Blocks of factors that one compiled function takes: more make it slow to compile.
_MOST_BLOCKS = 32


def of_all(task: Task, side: Side, ways: tuple[Way, ...], step: int) -> list[list]:
    """Factors of all examples in consecutive blocks; the last example again and again to fill the last step."""
    size = block_size(side, step)
    whole_steps = lambda start: step * math.ceil(min(size, side.n - start) / step)
    return [_block(task, side, ways, start, whole_steps(start), step) for start in range(0, side.n, size)]


def shapes_of_all(task: Task, side: Side, ways: tuple[Way, ...], step: int) -> list[list]:
    """Shapes of what `of_all` returns."""
    size = block_size(side, step)
    one, _ = side.program.compiled_factors(ways, task.single).shapes(*arguments(task, side, step))
    counts = [math.ceil(min(size, side.n - start) / step) for start in range(0, side.n, size)]
    return [jax.eval_shape(join_blocks, [one] * count) for count in counts]


def of_block(task: Task, side: Side, start: int, size: int, step: int) -> list:
    """Factors of the block of examples from `start` on; `size` of them also where there are fewer."""
    return _block(task, side, side.ways, start, size, step)


def block_size(side: Side, step: int) -> int:
    """Examples of a block: those of a step, or of more where that would be too many blocks."""
    return step * math.ceil(side.n / step / _MOST_BLOCKS)


def must_verify(task: Task, side: Side) -> bool:
    """Whether it is still to be seen that examples do not interact."""
    return task.check and keywords.switches(task.kwargs_of(side)) not in side.program.verified


def arguments(task: Task, side: Side, step: int) -> tuple:
    """Arguments of the compiled factors of a step, the examples as shapes."""
    x = jax.eval_shape(functools.partial(examples, start=0, size=step, n=side.n), side.x)
    return task.params, task.basis(side), keywords.arrays(task.kwargs_of(side)), x


def examples(x: Any, start: int, size: int, n: int) -> Any:
    """Examples start to start + size of n, the last one again and again beyond the end."""
    if start == 0 and size == n:
        return x
    short = start + size - n
    if short <= 0:
        return jax.tree.map(lambda v: v[start : start + size], x)
    repeat = lambda v: jnp.concatenate([v[min(start, n - 1) :], jnp.repeat(v[-1:], min(short, size - 1), axis=0)])
    return jax.tree.map(repeat, x)


def join_blocks(blocks: list[list], n: int | None = None) -> list:
    """The factors of (the first n) examples of consecutive blocks, copied into one."""
    return [join(list(part), n) for part in zip(*blocks, strict=True)]


def _block(task: Task, side: Side, ways: tuple[Way, ...], start: int, size: int, step: int) -> list:
    """Factors of examples start to start + size, step by step; the last step may take some of the one before again."""
    run = side.program.compiled_factors(ways, task.single)
    write = side.program.compiled(("place",), _place, donate=0)
    kwargs = keywords.arrays(task.kwargs_of(side))
    basis = task.basis(side)
    firsts = [min(first, size - step) for first in range(0, size, step)]
    outputs: list[jax.Array] = []
    block: list = []
    in_flight = Machine.here().in_flight
    for first in firsts:
        if len(outputs) >= in_flight:
            jax.block_until_ready(outputs[-in_flight])
        factors, y = run(task.params, basis, kwargs, examples(side.x, start + first, step, side.n))
        outputs.append(y)
        block = block or (factors if size == step else [room(factor, size) for factor in factors])
        block = factors if size == step else write(block, factors, first)
    if must_verify(task, side) and min(size, side.n) > 1:
        n = min(size, side.n - start)
        alone = np.empty((size, outputs[0].shape[-1]), outputs[0].dtype)
        for first, y in zip(firsts, outputs, strict=True):
            alone[first : first + step] = y
        all_at_once = side.program.compiled_outputs(side.f, task.kwargs_of(side))
        f, x = lambda params, x: all_at_once(params, x, kwargs), examples(side.x, start, n, side.n)
        tangents = side.program.tangents
        judges = _compat.judges_numbers(tangents.jaxpr)
        try:
            interaction.check_independent(f, task.params, x, alone[:n], tangents.roundoff, judges, task.call)
        finally:
            side.program.forget_outputs()
        side.program.verified.add(keywords.switches(task.kwargs_of(side)))
    return block


def _place(block: list, factors: list, start: Any) -> list:
    """A block of factors with those of one step written in."""
    return [place(whole, own, start) for whole, own in zip(block, factors, strict=True)]
