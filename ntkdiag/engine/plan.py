"""The plan of a kernel, decided from shapes alone: blocks, methods and cost.

1. The network passes of one example are traced, and their products and live memory counted
   (`cost`). In a kernel of one tile, Jacobians are formed while they are contracted wherever their
   factors are smaller.
2. Bytes per example and per pair decide how examples are cut into blocks:

    one tile   all factors are there at once, and contracted at once
    tiles      the factors of some row blocks are held while all columns pass by; unless all
               fit, columns are differentiated again in every sweep

   A triangle (x2=None) of 6 blocks with 2 held, by the sweep that computes each tile. Columns left
   of the rows of a sweep are known by symmetry; those right of them are differentiated again:

        columns ->   0 1 2 3 4 5
    rows 0           1 1 1 1 1 1
         1             1 1 1 1 1
         2               2 2 2 2
         3                 2 2 2      6 + 4 + 2 blocks are differentiated, each twice on average
         4                   3 3
         5                     3

3. Multiply-adds of the passes, of forming and of contracting factors are added up.

The device also decides how work is cut: a CPU is fastest on a few examples at a time, whose
intermediate values stay in its cache; an accelerator on as much as its memory holds.

Two things are there at once whatever the blocks are: the output directions [k C], and all of a
joint batch, which is differentiated as one example with N C outputs. They are refused if they do
not fit.
"""

import contextlib
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ntkdiag import display, errors, memory
from ntkdiag.engine.contraction import Way, copies_at_once, streamed
from ntkdiag.engine.cost import JaxprCost
from ntkdiag.engine.inputs import Inputs
from ntkdiag.kernel.reduction import Contraction
from ntkdiag.memory import readable

# Bytes of a chunk for each example it is for, at least: with many examples chunks are larger.
_CHUNK_PER_EXAMPLE = 2**14
# Bytes of the caches of a CPU, about: intermediate values stay in the one, chunks in the other.
_CACHE_OF_LAST_LEVEL = 24 * 2**20
_CACHE_OF_SECOND_LEVEL = 2**20
_CHUNK_OF_ACCELERATOR = 2**28
_UNBOUNDED = 2**62
# Arrays as large as a chunk that are alive while it is contracted: the chunk and its cotangents.
_CHUNK_COPIES = 2
# Tiles alive at once: a sum, the term added, the new sum, the tile before on its way to the host.
_TILE_COPIES = 4
# Examples of a tile from which on its chunks are contracted faster than the whole.
_IN_CHUNKS = 16
# Examples of a tile in which a pass costs twice what it costs in a large one.
_SMALL_TILE = 8
# Bytes beyond which a larger tile makes no product faster.
_LARGEST_TILE = 2**26
# By how much blocks of neighbouring sizes that are compared differ in number.
_NEXT_SIZE = 1.02
# Slightly more, so that the number shown with three digits is enough.
_ROUNDED_UP = 1.005
# Bytes that compiling leaves behind, 100 to 165 MB where it was measured, program by program.
_COMPILING = 150_000_000
# Budgets in which room is left for compiling: in smaller ones nothing else would fit.
_LARGE_BUDGET = 4 * _COMPILING
# Directions with which a trace is estimated to within a few percent.
_PROJECTIONS = 16
# Copies of the full kernel of a joint batch while it is made symmetric and reduced.
_COPIES_OF_JOINT_KERNEL = 4
# The directions are made on the host, and copied to the device.
_COPIES_OF_DIRECTIONS = 2
# The share of the rate of one large product that a kernel reaches.
_EFFICIENCY = 0.5
# The product that measures the rate of the machine: rows and columns, and how often it is timed.
_SIZE_OF_PRODUCT = 768
_TIMES = 5
# Columns of the printed table.
_WIDTH = 110


# How examples are cut.


@dataclasses.dataclass(frozen=True)
class Machine:
    """How work is cut for a device."""

    step: int  # bytes of intermediate values of the examples that are differentiated together
    chunk: int  # bytes of a Jacobian that is formed while it is contracted, for a few examples
    workers: int  # how many computations run side by side
    in_flight: ClassVar[int] = 2  # steps under way: one is computed, on all cores, and one waits

    def chunk_of(self, n: int) -> int:
        """Bytes of a chunk for n examples."""
        # Products of many examples outweigh what it costs to read a chunk from memory;
        # chunks of a few columns only are slow to form.
        return max(self.chunk, _CHUNK_PER_EXAMPLE * n)

    def shares(self, n: int, output: int) -> int:
        """How many sums of chunks for n examples are made side by side, each of `output` bytes."""
        # One for each worker, but fewer where the sums outweigh the chunks: such products
        # keep all cores busy by themselves.
        affordable = self.workers * self.chunk_of(n) // max(1, output)
        return max(1, min(self.workers, affordable))

    @staticmethod
    def here() -> "Machine":
        """How work is cut for the default device."""
        if jax.default_backend() == "cpu":
            workers = os.cpu_count() or 1
            if hasattr(os, "sched_getaffinity"):  # the cores this process may run on
                workers = len(os.sched_getaffinity(0))
            return Machine(_CACHE_OF_LAST_LEVEL, _CACHE_OF_SECOND_LEVEL, workers=workers)
        # An accelerator takes all examples at once, and large chunks one after the other.
        return Machine(_UNBOUNDED, _CHUNK_OF_ACCELERATOR, workers=1)


class Blocks(NamedTuple):
    """How examples are cut into blocks."""

    size: int  # tiles are `size` by `size` examples
    held: int  # blocks of rows, or of rows and columns, whose factors are kept
    n_rows: int  # blocks of rows
    n_columns: int  # blocks of columns; 0 where they are the rows
    step: int  # examples differentiated at a time

    @property
    def one_tile(self) -> bool:
        """Whether one tile does it all."""
        return self.n_rows == 1 and self.n_columns <= 1

    @property
    def holds_columns(self) -> bool:
        """Whether the factors of all columns are kept too."""
        return self.held >= self.n_rows + self.n_columns

    @property
    def passes(self) -> float:
        """How many times an example is differentiated, on average."""
        # Every sweep needs all columns.
        if self.n_columns:
            times = 1 if self.holds_columns else math.ceil(self.n_rows / self.held)
            return (self.n_rows + self.n_columns * times) / (self.n_rows + self.n_columns)
        # In a triangle, a sweep needs the columns after its own rows again.
        again = sum(self.n_rows - done for done in range(self.held, self.n_rows, self.held))
        return (self.n_rows + again) / self.n_rows


class Sizes(NamedTuple):
    """Bytes that decide how examples are cut into blocks."""

    factors: int  # factors of one example
    working: int  # what the network passes of one example need at their peak, its factors included
    pair: int  # one pair of examples in a tile
    output: int  # the whole kernel
    step: int  # examples the device differentiates best at a time
    shared: int = 0  # what the network passes need at their peak besides, once for all examples
    # Of the factors of one example, what is copied where steps are joined or triangles cut.
    copied: int = 0
    strips: float = 0.0  # copies of that in triangles, which are cut into strips
    chunks: int = 0  # of Jacobians that are contracted chunk by chunk, in a kernel of one tile
    chunk: int = 0  # the same in one of several tiles

    def at_once(self, n: int, m: int) -> int:
        """Peak bytes of a kernel of one tile."""
        # Memory that one phase has given back is not always there for the next: phases
        # count as a sum.
        copies = self.strips
        if n + m > self.step:  # several steps are joined
            copies += 1
        contracting = round(copies * (n + m) * self.copied) + self.chunks
        passing, _ = self._in_flight(max(n, m))
        # The kernel exists twice: as strips, and assembled.
        return (n + m) * self.factors + passing + contracting + 2 * self.output

    def in_tiles(self, size: int, held: int) -> int:
        """Peak bytes in tiles of so many by so many examples, with some blocks of factors held."""
        passing, writing = self._in_flight(size)
        # A block of columns counts twice while it is made: memory of its steps is not all reused.
        columns = 2 * size * self.factors + passing + writing
        chunks = min(self.chunk, 2 * size * self.factors) if size >= _IN_CHUNKS else 0
        tile = round(self.strips * size * self.copied) + chunks + _TILE_COPIES * size**2 * self.pair
        return self.output + columns + tile + held * size * self.factors

    def _in_flight(self, n: int) -> tuple[int, int]:
        """Of the steps under way: what network passes take, and factors not yet in their block."""
        step = min(self.step, n)
        steps = min(math.ceil(n / step), Machine.in_flight)
        passing = steps * (step * max(0, self.working - self.factors) + self.shared)
        return passing, steps * step * self.factors if n > step else 0


def blocks_within(
    n: int,
    m: int,
    sizes: Sizes,
    budget: int,
    most: int | None = None,
    cheaper: Callable[[], str] = lambda: "Raise memory=.",
) -> tuple[Blocks, int]:
    """The best blocks of n by m examples (m = 0: the rows) within a budget, and their peak."""
    longest = max(n, m)
    at_once = sizes.at_once(n, m)
    may_be_one = most is None or most >= longest
    if may_be_one and at_once <= budget:
        blocks = Blocks(longest, 2, 1, 1 if m else 0, _even(longest, sizes.step))
        return blocks, at_once
    smallest = sizes.in_tiles(1, held=1)
    if smallest > budget:
        kernel = f"The kernel alone takes {readable(sizes.output)}"
        if 2 * sizes.output > smallest:
            kernel += ", and less for fewer examples"
        # One tile of an example or two takes less than tiles of one.
        least = min(smallest, at_once) if may_be_one else smallest
        raise errors.MemoryBudgetError(
            expected=f"a budget of at least {readable(_ROUNDED_UP * least)}",
            got=readable(budget),
            do=f"{kernel}. {cheaper()}",
        )

    # Blocks of equal size: a last block of few examples would cost as much as the others.
    candidates = []
    n_blocks = 1
    while n_blocks <= longest:
        size = math.ceil(longest / n_blocks)
        following = max(n_blocks + 1, int(_NEXT_SIZE * n_blocks))
        # Blocks of one example are always tried: they may be all that fits.
        n_blocks = following if n_blocks == longest else min(following, longest)
        n_rows, n_columns = math.ceil(n / size), math.ceil(m / size)
        # What the budget has left with one block held is room to hold more.
        held = 1 + (budget - sizes.in_tiles(size, held=1)) // max(1, size * sizes.factors)
        too_large = size**2 * sizes.pair > _LARGEST_TILE or size > (most or size)
        if held < 1 or (too_large and size > 1):
            continue
        n_all = n_rows + n_columns
        held = n_all if held >= n_all else min(held, n_rows)
        candidates.append(Blocks(size, held, n_rows, n_columns, _even(size, sizes.step)))
    # Smaller blocks may leave room for more factors and need fewer passes, but are contracted more
    # slowly.
    best = min(candidates, key=lambda blocks: blocks.passes * (1 + _SMALL_TILE / blocks.size))
    return best, sizes.in_tiles(best.size, best.held)


def in_chunks(n: int, contraction: Contraction) -> bool:
    """Whether Jacobians of a tile of n by n examples are contracted chunk by chunk."""
    # Products of a few dozen rows and a million columns are far slower than their chunks;
    # "full" has more rows, and fewer columns.
    return n >= _IN_CHUNKS and contraction != "full"


def _even(total: int, block: int) -> int:
    """A block no larger than `block` that cuts `total` into nearly equal parts."""
    n_blocks = math.ceil(total / min(block, total))
    return math.ceil(total / n_blocks)


# The plan.


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """One part of the Jacobian in a plan."""

    paths: tuple[str, ...]  # the parameter leaves
    primitives: tuple[str, ...]  # where they are used; "vjp" where a use has no structured form
    factor: str  # what is kept per example: "outer", "rows", "tied", "dense" or "streamed"
    flops: int  # floating-point operations to form and contract it, over the whole kernel
    bytes: int  # kept per example


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a kernel will be computed; print it for a table.

    Attributes:
        rows: One row per part of the Jacobian, with `paths`, `primitives`, `factor`, `flops` and
            `bytes`.
        blocks: How examples are cut into blocks.
        ways: How the parts are contracted, in the order of the rows.
        n: Row examples.
        m: Column examples (n again where they are the rows).
        reduction: Over outputs, as in `Convention.reduction`.
        directions: Output directions: backward passes per example.
        network_flops: Of all forward and backward passes.
        contraction_flops: Of forming and contracting factors.
        passes: How many times each example is differentiated, on average.
        peak_bytes: Predicted peak of memory beyond parameters and inputs.
        budget_bytes: What was allowed.
        shares: How many sums of chunks there are, of Jacobians formed while they are contracted.
    """

    rows: tuple[PlanRow, ...]
    blocks: Blocks
    ways: tuple[Way, ...]
    n: int
    m: int
    reduction: str
    directions: int
    network_flops: int
    contraction_flops: int
    passes: float
    peak_bytes: int
    budget_bytes: int
    shares: int

    @property
    def flops(self) -> int:
        """Floating-point operations in total."""
        return self.network_flops + self.contraction_flops

    @functools.cached_property
    def seconds(self) -> float:
        """Predicted time once compiled, at the rate of products here; right within a factor 3."""
        return self.flops / (_EFFICIENCY * _machine_rate())

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """The plan as a table."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        title = f"NTK of {self.n} x {self.m} examples, {self.directions} backward passes each"
        table = Table(title=title)
        for name in ("parameters", "used by", "factor"):
            table.add_column(name, overflow="fold")
        for name in ("flops", "bytes/example"):
            table.add_column(name, justify="right")
        for row in self.rows:
            cells = ["\n".join(row.paths), ", ".join(row.primitives), row.factor]
            cells += [f"{row.flops:.2g}", readable(row.bytes)]
            table.add_row(*map(Text, cells))  # names of parameters are not markup
        console = Console(width=_WIDTH, force_terminal=False)
        with console.capture() as capture:
            console.print(table)
        tiles = f"{self.blocks.n_rows} x {self.blocks.n_columns or self.blocks.n_rows} tiles"
        return (
            f"{capture.get()}network passes {self.network_flops:.3g} flops, contraction "
            f"{self.contraction_flops:.3g} flops, about {self.seconds:.2g} s\n"
            f"each example differentiated {self.passes:.3g} times, {self.blocks.step} at a time; "
            f"{tiles}\n"
            f"peak memory {readable(self.peak_bytes)} of {readable(self.budget_bytes)} allowed; "
            f"the first call compiles, which takes about {readable(_COMPILING)} more\n"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values as JSON has them: the rows, the blocks, and all totals by name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del fields["ways"]  # jaxprs and shapes: nothing for a file
        fields["rows"] = [dataclasses.asdict(row) for row in self.rows]
        fields["blocks"] = self.blocks._asdict()
        return display.plain(fields | {"flops": self.flops})


def make_plan(inputs: Inputs, budget: int | None) -> Plan:
    """The plan of a kernel within so many bytes; None is half of what is free."""
    # In one tile, Jacobians are formed while they are contracted. With groups or weights every
    # product is needed separately, so nothing is formed late.
    ways_of_one_tile = inputs.rows.ways
    if inputs.is_plain_sum:
        ways_of_one_tile = streamed(ways_of_one_tile)

    # Most kernels fit, whatever the budget is: what is planned without one is kept.
    rows = inputs.rows
    plans = rows.program.plans
    tile = inputs.tile(inputs.n, inputs.n_columns)
    sums = inputs.gram.n_groups, inputs.is_plain_sum
    keys = tuple(way.key for way in rows.ways)
    shape, name = rows.basis_shape.shape, inputs.reduction.name
    key = keys, name, shape, tile, inputs.dtype, sums, inputs.most_examples, Machine.here()
    if key not in plans:
        plans[key] = _plan(inputs, ways_of_one_tile, _UNBOUNDED)
    unlimited = plans[key]
    compiling = 0
    if budget is None:
        budget = memory.budget_for(unlimited.peak_bytes)
    elif inputs.memory is not None and budget >= _LARGE_BUDGET:
        compiling = _COMPILING
    if unlimited.peak_bytes + compiling <= budget and unlimited.blocks.one_tile:
        return dataclasses.replace(unlimited, budget_bytes=budget)

    # In several tiles, Jacobians are formed once, with their block, and not again for every tile.
    with contextlib.suppress(errors.MemoryBudgetError):  # then without room to compile in, below
        in_tiles = _plan(inputs, inputs.rows.ways, budget - compiling)
        return dataclasses.replace(in_tiles, budget_bytes=budget)
    return _plan(inputs, inputs.rows.ways, budget)


def planned(inputs: Inputs) -> Plan | None:
    """The plan, once directions fit; None inside a trace and for a joint batch, one block each."""
    budget = None if inputs.memory is None else memory.budget(inputs.memory)
    # The directions of a side are C^2 numbers where all C outputs are directions.
    k, c = inputs.rows.basis_shape.shape
    what = f"{k:,} directions of {c:,} outputs"
    needed = sum(math.prod(side.basis_shape.shape) for side in inputs.sides)
    needed *= _COPIES_OF_DIRECTIONS * inputs.rows.basis_shape.dtype.itemsize
    allowed = None
    if inputs.joint:
        what = "a joint batch, which is differentiated as a whole"
        needed += _bytes_of_joint_batch(inputs)
        allowed = budget
    memory.require_free(
        needed,
        what,
        lambda: memory.free_memory() if allowed is None else allowed,
        functools.partial(_cheaper_choices, inputs),
    )
    return None if inputs.joint or inputs.in_a_trace else make_plan(inputs, budget)


def _plan(inputs: Inputs, ways: tuple[Way, ...], budget: int) -> Plan:
    """The plan of a kernel with these ways of contracting it."""
    n, m = inputs.n, inputs.n_columns
    # How examples are cut.
    side = inputs.rows
    network = side.program.trace(ways, side.basis_shape, merged=inputs.is_plain_sum).cost
    sizes, shares = _sizes(inputs, ways, network)
    cheaper = functools.partial(_cheaper_choices, inputs)
    blocks, peak = blocks_within(n, m, sizes, budget, inputs.most_examples, cheaper)

    # What it costs, of examples counted as often as they are differentiated.
    differentiated = blocks.passes * (n + m)
    pairs = n * m if m else n * (n + 1) // 2  # a rectangle, or a triangle with its diagonal
    rows = tuple(_row(inputs, way, differentiated, pairs) for way in ways)
    # The trace of the network passes forms the dense factors; they are counted with their rows.
    forming = sum(2 * way.form for way in ways if way.name == "dense")
    return Plan(
        rows=rows,
        blocks=blocks,
        ways=ways,
        n=n,
        m=inputs.m,
        reduction=inputs.reduction.name,
        directions=inputs.rows.directions.n,
        network_flops=round((network.flops - forming) * differentiated),
        contraction_flops=sum(row.flops for row in rows),
        passes=blocks.passes,
        peak_bytes=peak,
        budget_bytes=budget,
        shares=shares,
    )


def _sizes(inputs: Inputs, ways: tuple[Way, ...], network: JaxprCost) -> tuple[Sizes, int]:
    """Bytes that decide how examples are cut, and how many sums of chunks are made side by side."""
    machine = Machine.here()
    n_examples = inputs.n + inputs.n_columns
    itemsize = jnp.dtype(inputs.rows.program.jacobian.dtype).itemsize
    n_kernels = inputs.gram.n_groups
    # The results: what one pair of examples takes in one kernel, and all kernels there will be.
    pair = inputs.dtype.itemsize * math.prod(inputs.tile(1, 1).shape)
    output = pair * inputs.n * inputs.m
    if n_kernels > 1:
        output *= n_kernels + 1  # with kernels of several leaves there is their sum, too

    # Jacobians that are contracted chunk by chunk: what exists of them is a chunk for each worker,
    # no larger than the largest Jacobian, with what it is formed of.
    chunked = [way for way in ways if inputs.is_plain_sum and way.forms_jacobian]
    rows_of_jacobian = n_examples * inputs.rows.directions.n
    jacobians = [rows_of_jacobian * way.part.size * itemsize for way in chunked]
    operands = [n_examples * way.operand * itemsize for way in ways if way.name == "streamed"]
    chunk = _CHUNK_COPIES * min(machine.chunk_of(n_examples), max(jacobians, default=0))
    chunk += max(operands, default=0)
    # Each of the workers that share out the chunks adds them to a kernel of its own.
    shares = machine.shares(n_examples, output)
    sums_of_chunks = shares * output if chunked else 0
    # In a kernel of several tiles there are chunks too, unless all directions are paired.
    chunk_of_a_tile = 0
    if chunked and inputs.reduction.contraction != "full":
        chunk_of_a_tile = _CHUNK_COPIES * machine.workers * machine.chunk

    # All other factors of several steps are joined, which copies them.
    size_of_factors = sum(way.size for way in ways)
    copied = size_of_factors - sum(way.size for way in chunked)
    sizes = Sizes(
        factors=size_of_factors * itemsize,
        working=network.peak,
        pair=pair * n_kernels,
        output=output,
        step=max(1, machine.step // max(1, network.peak)),
        shared=network.shared,
        copied=copied * itemsize,
        strips=copies_at_once(inputs.tile(inputs.n, inputs.m)),
        chunks=machine.workers * chunk + sums_of_chunks,
        chunk=chunk_of_a_tile,
    )
    return sizes, shares


def _row(inputs: Inputs, way: Way, differentiated: float, pairs: int) -> PlanRow:
    """One part of the plan, for so many examples differentiated and so many pairs contracted."""
    program = inputs.rows.program
    sites = (*way.part.sites, *way.part.added_sites)
    primitives = tuple(dict.fromkeys(site.primitive for site in sites))
    return PlanRow(
        paths=tuple(program.paths[leaf] for leaf in way.part.leaves),
        primitives=primitives or ("vjp",),
        factor=way.name,
        flops=round(2 * way.form * differentiated + 2 * way.gram * pairs),
        bytes=way.size * jnp.dtype(program.jacobian.dtype).itemsize,
    )


def _bytes_of_joint_batch(inputs: Inputs) -> int:
    """Bytes that a joint batch takes at its peak beside its directions, counted from shapes."""
    needed = 0
    # Entries of the kernel [(n c) (m d)].
    outputs = inputs.rows.directions.n * inputs.sides[-1].directions.n
    for side in inputs.sides:
        cost = side.program.trace(side.ways, side.basis_shape, merged=False).cost
        needed += cost.peak + cost.shared
    return needed + _COPIES_OF_JOINT_KERNEL * inputs.gram.n_groups * outputs * inputs.dtype.itemsize


def _cheaper_choices(inputs: Inputs) -> str:
    """What this call could do instead, as sentences for the end of an error."""
    if inputs.joint:
        return (
            'Take fewer examples, raise memory=, or make the model with mode="eval", in which '
            "examples are independent and are differentiated block by block."
        )
    choices = "Raise memory="
    name = inputs.reduction.name
    k = inputs.rows.directions.n
    if name in ("full", "diagonal"):
        choices += ', or use reduction="mean", a kernel of n x m numbers'
    # Every output direction is one backward pass, with cotangents of its own.
    if k > _PROJECTIONS:
        choices += (
            f", or use reduction=RandomProjections({_PROJECTIONS}), with {_PROJECTIONS} backward "
            f"passes instead of {k:,}"
        )
    return f"{choices}."


@functools.cache
def _machine_rate() -> float:
    """Floating-point operations per second of a float32 matrix product here, measured once."""
    size = _SIZE_OF_PRODUCT
    x = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))
    product(x).block_until_ready()
    times = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        product(x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)
