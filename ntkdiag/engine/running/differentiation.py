"""The examples of one side, differentiated a few at a time.

A step is as many examples as keep their intermediate values in the cache of the device. In a kernel
of one tile the factors of all steps wait side by side, and are joined only where they are
contracted. In a kernel of several tiles the steps of a block are written into the memory of that
block, so that a block never exists twice.

    block of 8 examples, steps of 3:    [0 1 2] [3 4 5] [5 6 7]

The first time, it is verified that examples do not interact: the outputs that came with the factors
of each example are compared with f of the whole block.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag.engine.contracting.contraction_methods import Way
from ntkdiag.engine.jacobian.factors import (
    Factor,
    concatenate_examples,
    write_examples,
    zeros_for_examples,
)
from ntkdiag.engine.planning.blocks import Machine
from ntkdiag.engine.planning.task import KernelSide, Task
from ntkdiag.jaxtools import independence, jaxprs
from ntkdiag.jaxtools.caching import arrays_of, switches

# Blocks of factors that one compiled function takes: more make it slow to compile.
_MOST_BLOCKS = 32


@dataclasses.dataclass(frozen=True, eq=False)
class Differentiation:
    """How one side is differentiated."""

    task: Task  # what is computed
    side: KernelSide  # its rows or its columns
    ways: tuple[Way, ...]  # how the parts are contracted: they say in which form factors are kept
    step: int  # examples at a time

    def all_blocks(self) -> list[list[Factor]]:
        """Factors of all examples in consecutive blocks; the last example fills the last step."""
        size = self._block_size
        blocks = []
        for start in range(0, self.side.n, size):
            n_steps = math.ceil(min(size, self.side.n - start) / self.step)
            blocks.append(self.block(start, n_steps * self.step))
        return blocks

    def block(self, start: int, size: int) -> list[Factor]:
        """Factors of examples start to start + size; beyond the end the last one is repeated."""
        batch = self.side.batch
        kwargs = arrays_of(batch.kwargs)
        differentiate = self.side.program.compiled_factors(self.ways, self._merged)
        write = self.side.program.compiled("place", _placed, donate=0)
        # The last step may take some examples of the one before again.
        firsts = [min(first, size - self.step) for first in range(0, size, self.step)]
        # Outputs wait on the device: fetching one waits for its step.
        outputs: list[Array] = []
        block: list[Factor] = []
        in_flight = Machine.here().in_flight
        for first in firsts:
            # JAX computes while this loop goes on: more steps under way would need more memory.
            if len(outputs) >= in_flight:
                jax.block_until_ready(outputs[-in_flight])
            x = examples(batch.x, start + first, self.step, batch.n)
            factors, y = differentiate(self.task.call.params, self.side.basis, kwargs, x)
            outputs.append(y)
            if size == self.step:  # a block of one step is that step
                block = factors
            else:
                block = block or [zeros_for_examples(factor, size) for factor in factors]
                block = write(block, factors, first)

        # What came beside the factors are outputs of each example alone: [size C].
        if self._must_verify and min(size, batch.n) > 1:
            alone = np.empty((size, outputs[0].shape[-1]), outputs[0].dtype)
            for first, y in zip(firsts, outputs, strict=True):
                alone[first : first + self.step] = y
            self._verify(start, alone)
        return block

    def begin(self, *, one_by_one: bool) -> None:
        """Have everything compiled on other threads, what takes longest first."""
        factors = self.side.program.compiled_factors(self.ways, self._merged)
        factors.begin(*self._argument_shapes)
        if one_by_one:
            factors.wait()
        batch = self.side.batch
        if self._must_verify and batch.n > 1:
            n = min(self._block_size, batch.n)
            first_block = functools.partial(examples, start=0, size=n, n=batch.n)
            x = jax.eval_shape(first_block, batch.x)
            outputs = self.side.program.compiled_outputs(batch.f, batch.kwargs)
            outputs.begin(self.task.call.params, x, arrays_of(batch.kwargs))
            if one_by_one:
                outputs.wait()

    def shapes(self) -> list[list[Factor]]:
        """Shapes of `all_blocks`."""
        differentiate = self.side.program.compiled_factors(self.ways, self._merged)
        of_step, _ = differentiate.shapes(*self._argument_shapes)
        size = self._block_size
        blocks = []
        for start in range(0, self.side.n, size):
            n_steps = math.ceil(min(size, self.side.n - start) / self.step)
            blocks.append(jax.eval_shape(joined, [of_step] * n_steps))
        return blocks

    @property
    def _merged(self) -> bool:
        """Whether dense factors are put side by side, as one."""
        return self.task.is_plain_sum

    @property
    def _block_size(self) -> int:
        """Examples of a block: those of a step, or of more where that would be too many blocks."""
        return self.step * math.ceil(self.side.n / self.step / _MOST_BLOCKS)

    @property
    def _argument_shapes(self) -> tuple:
        """Arguments of the compiled factors of a step, the examples as shapes."""
        batch = self.side.batch
        of_step = functools.partial(examples, start=0, size=self.step, n=batch.n)
        x = jax.eval_shape(of_step, batch.x)
        return self.task.call.params, self.side.basis, arrays_of(batch.kwargs), x

    @property
    def _must_verify(self) -> bool:
        """Whether it is still to be seen that examples do not interact."""
        if not self.task.call.options.check:
            return False
        return switches(self.side.batch.kwargs) not in self.side.program.verified

    def _verify(self, start: int, alone: np.ndarray) -> None:
        """Compare f of a block of examples with the outputs of each example alone [n C]."""
        batch, program = self.side.batch, self.side.program
        n = min(len(alone), batch.n - start)
        x = examples(batch.x, start, n, batch.n)
        kwargs = arrays_of(batch.kwargs)
        compiled = program.compiled_outputs(batch.f, batch.kwargs)

        def all_at_once(params: PyTree, x: PyTree) -> PyTree:
            return compiled(params, x, kwargs)

        # Whether f decides by its numbers (a comparison, an argmax): rounding may then show in
        # full.
        judges = jaxprs.judges_numbers(program.jacobian.jaxpr)
        roundoff = program.jacobian.roundoff
        do = independence.how_to_part(batch.f)
        # f is compiled for this once, and let go of: programs do not hold their function.
        try:
            independence.check_independent(
                all_at_once, self.task.call.params, x, alone[:n], roundoff, judges, do
            )
        finally:
            program.forget_outputs()
        program.verified.add(switches(batch.kwargs))


def examples(x: PyTree[Array], start: int, size: int, n: int) -> PyTree[Array]:
    """Examples start to start + size of n, the last one again and again beyond the end."""
    if start == 0 and size == n:
        return x
    missing = start + size - n
    if missing <= 0:
        return jax.tree.map(lambda v: v[start : start + size], x)

    def filled(v: Array) -> Array:
        # [n - start ...] and [missing ...] -> [size ...]
        last = jnp.repeat(v[-1:], min(missing, size - 1), axis=0)
        return jnp.concatenate([v[min(start, n - 1) :], last])

    return jax.tree.map(filled, x)


def joined(blocks: list[list[Factor]], n: int | None = None) -> list[Factor]:
    """The factors of (the first n) examples of consecutive blocks, copied into one."""
    return [concatenate_examples(list(factors), n) for factors in zip(*blocks, strict=True)]


def _placed(block: list[Factor], factors: list[Factor], start: Array) -> list[Factor]:
    """A block of factors with those of one step written in."""
    return [
        write_examples(all_of, some, start) for all_of, some in zip(block, factors, strict=True)
    ]
