"""What will be computed, how, and what it will cost: decided from shapes alone, before anything runs."""

import dataclasses
import functools
import math
import time
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag.kernels import memory as budgets
from ntkdiag.kernels.gram import in_strips
from ntkdiag.kernels.machine import Machine
from ntkdiag.kernels.program import Program
from ntkdiag.kernels.reduction import Reduction
from ntkdiag.kernels.tiles import Blocks, Sizes, readable
from ntkdiag.kernels.ways import Way, streamed

# Arrays as large as a piece that are alive while it is contracted: itself, and its cotangents in two layouts.
_PIECE_COPIES = 2
# Bytes that are there without asking.
_SMALL = 2**26
_UNBOUNDED = 2**62


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """One part of the Jacobian in a plan.

    Attributes:
        paths: The parameter leaves.
        primitives: Where they are used; "vjp" where a use has no structured form.
        factor: What is kept per example: "outer", "rows", "tied", "dense" or "streamed", see `Way`.
        flops: To form and contract it, over the whole kernel.
        bytes: Kept per example.
    """

    paths: tuple[str, ...]
    primitives: tuple[str, ...]
    factor: str
    flops: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a kernel will be computed; print it for a table.

    Attributes:
        rows: One row per part.
        blocks: How examples are cut into blocks.
        ways: How the parts are contracted, in the order of the rows.
        n: Row examples.
        m: Column examples (n again where they are the rows).
        directions: Output directions: backward passes per example.
        network_flops: Of all forward and backward passes.
        contraction_flops: Of forming and contracting factors.
        passes: How many times each example is differentiated, on average.
        peak_bytes: Predicted peak of memory beyond parameters and inputs.
        budget_bytes: What was allowed.
        shares: How many sums of pieces there are, of Jacobians formed while they are contracted.
        again_bytes: Factors that do not fit and are needed again: they wait in a file (`spill=`), or else their
            examples are differentiated again.
    """

    rows: tuple[PlanRow, ...]
    blocks: Blocks
    ways: tuple[Way, ...]
    n: int
    m: int
    directions: int
    network_flops: int
    contraction_flops: int
    passes: float
    peak_bytes: int
    budget_bytes: int
    shares: int
    again_bytes: int

    @property
    def flops(self) -> int:
        """Floating-point operations in total."""
        return self.network_flops + self.contraction_flops

    @functools.cached_property
    def seconds(self) -> float:
        """Predicted time once compiled, from the rate of a matrix product on this machine: within a factor of 3."""
        return self.flops / (0.5 * _machine_rate())

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """The plan as a table."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=f"NTK of {self.n} x {self.m} examples, {self.directions} backward passes each")
        for name in ("parameters", "used by", "factor"):
            table.add_column(name, overflow="fold")
        for name in ("flops", "bytes/example"):
            table.add_column(name, justify="right")
        for row in self.rows:
            cells = ("\n".join(row.paths), ", ".join(row.primitives), row.factor)
            table.add_row(*map(Text, (*cells, f"{row.flops:.2g}", readable(row.bytes))))
        console = Console(width=110, file=None, record=True, force_terminal=False)
        with console.capture() as capture:
            console.print(table)
        b = self.blocks
        return capture.get() + (
            f"network passes {self.network_flops:.3g} flops, contraction {self.contraction_flops:.3g} flops, "
            f"about {self.seconds:.2g} s\n"
            f"each example differentiated {self.passes:.3g} times{self._again}, {b.step} at a time; "
            f"{b.n_rows} x {b.n_columns or b.n_rows} tiles\n"
            f"peak memory {readable(self.peak_bytes)} of {readable(self.budget_bytes)} allowed\n"
        )

    @property
    def _again(self) -> str:
        """What a file does, or would do."""
        if not self.again_bytes:
            return ""
        size = readable(self.again_bytes)
        return f" with {size} on disk" if self.blocks.spilled else f" (once with spill= and {size} on disk)"


def make(
    program: Program,
    ways: tuple[Way, ...],
    basis: Any,
    reduction: Reduction,
    dtype: Any,
    n_groups: int,
    n: int,
    m: int,
    budget: int | None,
    call: str,
    streams: bool = False,
    spill: bool = False,
) -> Plan:
    """The plan for n by m examples (m = 0: the rows again).

    Args:
        program: The function.
        ways: How its parts are contracted.
        basis: Output directions.
        reduction: Over outputs.
        dtype: Of the kernel.
        n_groups: Number of kernels; with several there is their sum, too.
        n: Row examples.
        m: Column examples.
        budget: Bytes allowed; None: half of what is free, which is looked up only for kernels above 64 MB.
        call: For messages.
        streams: Whether Jacobians may be formed while they are contracted.
        spill: Whether factors that do not fit wait in a file.

    Raises:
        MemoryBudgetError: Not even one example at a time fits.
    """
    keys, tile = tuple(way.key for way in ways), reduction.tile_shape(1, 1)
    key = keys, basis.shape, tile, reduction.contraction, dtype, n_groups, n, m, streams, Machine.here()
    if key not in program.plans:
        late = streamed(ways) if streams else ways
        program.plans[key] = _make(program, late, basis, reduction, dtype, n_groups, n, m, _UNBOUNDED, call, streams)
    roomy = program.plans[key]
    if budget is None:
        budget = _SMALL if roomy.peak_bytes <= _SMALL else budgets.budget(None)
    if roomy.peak_bytes <= budget:
        return dataclasses.replace(roomy, budget_bytes=budget)
    return _make(program, ways, basis, reduction, dtype, n_groups, n, m, budget, call, streams, spill)


def _make(
    program: Program,
    ways: tuple[Way, ...],
    basis: Any,
    reduction: Reduction,
    dtype: Any,
    n_groups: int,
    n: int,
    m: int,
    budget: int,
    call: str,
    streams: bool,
    spill: bool = False,
) -> Plan:
    k = reduction.n_directions
    itemsize = jnp.dtype(program.tangents.dtype).itemsize
    pair = jnp.dtype(dtype).itemsize * math.prod(reduction.tile_shape(1, 1))
    network = program.trace(ways, basis, merged=streams).cost
    forming = sum(2 * way.form for way in ways if way.name == "dense")
    machine = Machine.here()
    in_pieces = ("streamed", "dense") if streams else ()
    cut = [(n + m) * k * way.part.size * itemsize for way in ways if way.name in in_pieces]
    joined = sum(way.size for way in ways if way.name not in in_pieces)
    operand = max((way.operand for way in ways if way.name == "streamed"), default=0)
    output = pair * n * (m or n) * (n_groups + (n_groups > 1))
    shares = machine.shares(n + m, output)
    piece = _PIECE_COPIES * min(machine.piece_of(n + m), max(cut, default=0)) + (n + m) * operand * itemsize
    sizes = Sizes(
        factors=sum(way.size for way in ways) * itemsize,
        working=network.peak,
        shared=network.shared,
        pair=pair * n_groups,
        output=output,
        step=max(1, machine.step // max(1, network.peak)),
        in_flight=machine.in_flight,
        joined=joined * itemsize,
        pieces=machine.workers * piece + (shares * output if cut else 0),
        piece=_PIECE_COPIES * machine.workers * machine.piece if cut and reduction.contraction != "full" else 0,
        strips=in_strips(reduction.tile_shape(n, m or n), reduction.contraction),
    )
    blocks = Blocks.largest(n, m, sizes, budget, call)
    again = blocks.again * blocks.size * sizes.factors
    blocks = blocks.with_file if spill else blocks
    pairs = n * m if m else n * (n + 1) // 2
    differentiated = blocks.passes * (n + m)
    rows = tuple(
        PlanRow(
            paths=tuple(program.paths[leaf] for leaf in way.part.leaves),
            primitives=tuple(dict.fromkeys(site.primitive for site in (*way.part.sites, *way.part.beside))) or ("vjp",),
            factor=way.name,
            flops=round(2 * way.form * differentiated + 2 * way.gram * pairs),
            bytes=way.size * itemsize,
        )
        for way in ways
    )
    return Plan(
        rows=rows,
        blocks=blocks,
        ways=ways,
        n=n,
        m=m or n,
        directions=k,
        network_flops=round((network.flops - forming) * differentiated),
        contraction_flops=sum(row.flops for row in rows),
        passes=blocks.passes,
        peak_bytes=blocks.peak,
        budget_bytes=budget,
        shares=shares,
        again_bytes=again,
    )


@functools.cache
def _machine_rate() -> float:
    """Floating-point operations per second of a float32 matrix product here, from a few milliseconds of one."""
    x = jnp.ones((768, 768), jnp.float32)
    product = jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))
    product(x).block_until_ready()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        product(x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * 768**3 / min(times)
