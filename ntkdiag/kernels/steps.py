"""Factors of the examples of a side, differentiated a few at a time."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.kernels import interaction, keywords
from ntkdiag.kernels.machine import Machine
from ntkdiag.kernels.task import Side, Task
from ntkdiag.kernels.ways import Way
from ntkdiag.tangents.factors import join

# Blocks of factors that one compiled function takes: more make it slow to compile.
_MOST_BLOCKS = 32


def of_all(task: Task, side: Side, ways: tuple[Way, ...], step: int) -> list[list]:
    """Factors of all examples in consecutive blocks."""
    size = block_size(side, step)
    return [
        _joined(side, _steps(task, side, ways, start, min(size, side.n - start), step))
        for start in range(0, side.n, size)
    ]


def shapes_of_all(task: Task, side: Side, ways: tuple[Way, ...], step: int) -> list[list]:
    """Shapes of what `of_all` returns."""
    size = block_size(side, step)
    one, _ = side.program.compiled_factors(ways, task.single).shapes(*arguments(task, side, step))
    counts = [math.ceil(min(size, side.n - start) / step) for start in range(0, side.n, size)]
    return [jax.eval_shape(join_blocks, [one] * count) for count in counts]


def of_block(task: Task, side: Side, start: int, size: int, step: int) -> list:
    """Factors of the block of examples from `start` on; `size` of them also where there are fewer."""
    return _joined(side, _steps(task, side, side.ways, start, size, step), size)


def block_size(side: Side, step: int) -> int:
    """Examples of a block: those of a step, or of more where that would be too many blocks."""
    return step * math.ceil(side.n / step / _MOST_BLOCKS)


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
    """The factors of (the first n) examples of consecutive blocks."""
    return [join(list(part), n) for part in zip(*blocks, strict=True)]


def _joined(side: Side, steps: list[list], n: int | None = None) -> list:
    """The factors of (the first n examples of) consecutive steps as one."""
    if len(steps) == 1:
        return steps[0]
    return side.program.compiled(("join", n), functools.partial(join_blocks, n=n))(steps)


def _steps(task: Task, side: Side, ways: tuple[Way, ...], start: int, size: int, step: int) -> list[list]:
    """Factors of examples start to start + size, step by step; the last ones repeat to fill the last step."""
    run = side.program.compiled_factors(ways, task.single)
    kwargs = keywords.arrays(task.kwargs_of(side))
    basis = task.basis(side)
    outcomes = []
    in_flight = Machine.here().in_flight
    for first in range(start, start + size, step):
        if len(outcomes) >= in_flight:
            jax.block_until_ready(outcomes[-in_flight])
        outcomes.append(run(task.params, basis, kwargs, examples(side.x, first, step, side.n)))
    if task.check and not side.program.verified and min(size, side.n) > 1:
        n = min(size, side.n - start)
        alone = np.concatenate([np.broadcast_to(y, (step, y.shape[-1])) for _, y in outcomes])[:n]
        all_at_once = side.program.compiled_outputs(side.f, task.kwargs_of(side))
        outputs = lambda params: all_at_once(params, examples(side.x, start, n, side.n), kwargs)
        interaction.check_independent(outputs, task.params, alone, task.call)
        side.program.verified = True
    return [factors for factors, _ in outcomes]
