"""What will be computed, how, and what it will cost: decided from shapes alone.

1. The network passes of one example are traced, and their products and live memory counted
   (`jaxpr_cost`).
2. Every part of the Jacobian has its cheapest way of contracting it (`Task`). In a kernel of one
   tile, Jacobians are formed while they are contracted wherever their factors are smaller.
3. Bytes per example and per pair decide how examples are cut into blocks (`Blocks`).
4. Multiply-adds of the passes, of forming and of contracting factors are added up.
"""

import contextlib
import dataclasses
import functools
import math
import time
from typing import TYPE_CHECKING, Any, Literal, cast

import jax
import jax.numpy as jnp

from ntkdiag import display, errors, memory
from ntkdiag.engine.contracting.contraction_methods import Way, streamed
from ntkdiag.engine.contracting.triangular_blocks import copies_at_once
from ntkdiag.engine.planning.blocks import Blocks, Sizes
from ntkdiag.engine.planning.cost import JaxprCost, jaxpr_cost
from ntkdiag.engine.planning.hardware import Machine
from ntkdiag.engine.planning.memory_check import cheaper_choices
from ntkdiag.engine.planning.task import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Arrays as large as a piece that are alive while it is contracted: the piece and its cotangents.
_PIECE_COPIES = 2
_UNBOUNDED = 2**62
# Of the rate of one large product, what a kernel reaches.
_EFFICIENCY = 0.5
# Height of a name beside its bar.
_INCHES_PER_NAME = 0.2
# Bytes that compiling leaves behind, 100 to 165 MB where it was measured, program by program. Room
# is left for it in budgets of several times as much: in smaller ones nothing else would fit.
_COMPILING = 150_000_000
_LARGE_BUDGET = 4 * _COMPILING
# What XLA takes of the bytes that are counted for one block in a trace: 0.5 to 1.9 of them, where
# it was measured on networks of several kinds.
_LEAST_OF_COUNTED = 0.5
_NO_PASSES = JaxprCost(0, 0, 0)
# Columns of the printed table.
_WIDTH = 110
# The product whose rate stands for the machine: rows and columns, and how often it is timed.
_SIZE_OF_PRODUCT = 768
_TIMES = 5


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """One part of the Jacobian in a plan.

    Attributes:
        paths: The parameter leaves.
        primitives: Where they are used; "vjp" where a use has no structured form.
        factor: What is kept per example: "outer", "rows", "tied", "dense" or "streamed".
        flops: Floating-point operations to form and contract it, over the whole kernel.
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
        rows: One row per part of the Jacobian: the `paths` of its parameters, the `primitives`
            where they are used, the `factor` that is kept of an example ("outer", "rows", "tied",
            "dense" or "streamed") and its `bytes`, and the `flops` of the whole kernel.
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
        shares: How many sums of pieces there are, of Jacobians formed while they are contracted.
        again_bytes: Factors that do not fit and are needed again: they wait in a file (`spill=`),
            or else their examples are differentiated again.
    """

    rows: tuple[PlanRow, ...]
    blocks: Blocks
    ways: tuple[Way, ...] = dataclasses.field(repr=False)
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
    again_bytes: int

    @property
    def flops(self) -> int:
        """Floating-point operations in total."""
        return self.network_flops + self.contraction_flops

    @functools.cached_property
    def seconds(self) -> float:
        """Predicted time once compiled, from the rate of products here; right within 3 times."""
        return self.flops / (_EFFICIENCY * _machine_rate())

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """The plan as a table."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self._title)
        for name in ("parameters", "used by", "factor"):
            table.add_column(name, overflow="fold")
        for name in ("flops", "bytes/example"):
            table.add_column(name, justify="right")
        for row in self.rows:
            cells = ["\n".join(row.paths), ", ".join(row.primitives), row.factor]
            cells += [f"{row.flops:.2g}", memory.readable(row.bytes)]
            table.add_row(*map(Text, cells))  # names of parameters are no markup
        console = Console(width=_WIDTH, file=None, record=True, force_terminal=False)
        with console.capture() as capture:
            console.print(table)
        return capture.get() + "".join(f"{line}\n" for line in self._totals)

    def _repr_html_(self) -> str:
        """The plan as a table, for notebooks."""
        rows = []
        for row in self.rows:
            factor = f"{row.factor} ({', '.join(row.primitives)})"
            price = f"{row.flops:.2g} flops, {memory.readable(row.bytes)} per example"
            rows.append((", ".join(row.paths), factor, price))
        rows += [("in total", "", line) for line in self._totals]
        return display.html_table(self._title, rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values as JSON has them: the rows, the blocks, and all totals by name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del fields["ways"]  # jaxprs and shapes: nothing for a file
        fields["rows"] = [dataclasses.asdict(row) for row in self.rows]
        fields["blocks"] = dataclasses.asdict(self.blocks)
        return display.plain(fields | {"flops": self.flops})

    @errors.public
    def plot(
        self, quantity: Literal["flops", "bytes"] = "flops", ax: "Axes | None" = None
    ) -> "Axes":
        """Bars of what each parameter costs.

        Args:
            quantity: "flops", over the whole kernel, or "bytes", kept per example.
            ax: Axes of matplotlib to draw on; a new figure without.

        Returns:
            The axes.

        Raises:
            InvalidInputError: There is no such quantity.
            MissingDependencyError: matplotlib is not installed.

        Cost: drawing.

        Example:
            >>> import jax.numpy as jnp, ntkdiag
            >>> plan = ntkdiag.plan(lambda w, x: x @ w, jnp.ones((2, 3)), jnp.ones((4, 2)))
            >>> plan.plot("bytes").get_xlabel()
            'bytes per example'
        """
        labels = {"flops": "floating-point operations", "bytes": "bytes per example"}
        if quantity not in labels:
            raise errors.InvalidInputError(
                expected="quantity= as 'flops' or 'bytes'",
                got=repr(quantity),
                do="Choose one of them.",
            )
        on_new_figure = ax is None
        ax = display.axes_to_draw_on(ax)
        if on_new_figure:  # as high as all names need, one below the other
            n_names = sum(len(row.paths) for row in self.rows)
            figure = cast("Figure", ax.figure)
            figure.set_figheight(max(figure.get_figheight(), _INCHES_PER_NAME * n_names))
        names = ["\n".join(row.paths) for row in self.rows]
        positions = range(len(names))
        ax.barh(positions, [getattr(row, quantity) for row in self.rows])
        ax.set_yticks(positions, names)
        ax.invert_yaxis()  # the first row on top, as in the table
        ax.margins(y=0.01)
        ax.set_xlabel(labels[quantity])
        ax.set_title(self._title.replace(", ", "\n"))
        return ax

    @property
    def _title(self) -> str:
        """What stands above the table."""
        return f"NTK of {self.n} x {self.m} examples, {self.directions} backward passes each"

    @property
    def _totals(self) -> list[str]:
        """What stands below the table."""
        tiles = f"{self.blocks.n_rows} x {self.blocks.n_columns or self.blocks.n_rows} tiles"
        again = ""
        if self.again_bytes:
            size = memory.readable(self.again_bytes)
            again = f" (once with spill= and {size} on disk)"
            if self.blocks.spilled:
                again = f" with {size} on disk"
        return [
            f"network passes {self.network_flops:.3g} flops, contraction "
            f"{self.contraction_flops:.3g} flops, about {self.seconds:.2g} s",
            f"each example differentiated {self.passes:.3g} times{again}, "
            f"{self.blocks.step} at a time; {tiles}",
            f"peak memory {memory.readable(self.peak_bytes)} of "
            f"{memory.readable(self.budget_bytes)} allowed; the first call compiles, which takes "
            f"about {memory.readable(_COMPILING)} more",
        ]


def make_plan(task: Task, budget: int | None) -> Plan:
    """The plan of a task within so many bytes; None is half of what is free.

    What is free is looked up for large kernels only.

    Raises:
        MemoryBudgetError: Not even one example at a time fits.
    """
    program = task.rows.program
    # In one tile, Jacobians are formed while they are contracted. With groups or weights every
    # product is needed by itself: nothing is formed late.
    ways_of_one_tile = task.rows.ways
    if task.is_plain_sum:
        ways_of_one_tile = streamed(ways_of_one_tile)

    # Most kernels fit, whatever the budget is: what is planned without one is kept.
    unlimited = program.keep(_key(task), lambda: _plan(task, ways_of_one_tile, _UNBOUNDED))
    compiling = 0
    if budget is None:
        budget = memory.budget_for(unlimited.peak_bytes)
    elif task.call.options.memory is not None and budget >= _LARGE_BUDGET:
        compiling = _COMPILING
    most_examples = task.call.options.most_examples
    may_be_one_tile = most_examples is None or most_examples >= max(unlimited.n, unlimited.m)
    if unlimited.peak_bytes + compiling <= budget and may_be_one_tile:
        return dataclasses.replace(unlimited, budget_bytes=budget)

    # In several tiles, Jacobians are formed once, with their block, and not again for every tile.
    with contextlib.suppress(errors.MemoryBudgetError):  # there is no room to compile in
        in_tiles = _plan(task, task.rows.ways, budget - compiling)
        return dataclasses.replace(in_tiles, budget_bytes=budget)
    return _plan(task, task.rows.ways, budget)


def require_room_in_a_trace(task: Task, budget: int | None) -> None:
    """Refuse a kernel inside somebody's trace, one block of their program, that cannot fit.

    Raises:
        MemoryBudgetError: It would be refused outside of the trace, too; or one block of it takes
            more than is free.
    """
    sizes, _ = _sizes(task, task.rows.ways, _NO_PASSES)
    m = 0 if task.columns is None else task.m
    certain = (task.rows.n + m) * sizes.factors + sizes.output
    if budget is None and certain <= memory.SMALL:
        return
    make_plan(task, budget)
    network = _network_cost(task, task.rows.ways)
    sizes, _ = _sizes(task, task.rows.ways, network)
    # All examples are differentiated at once.
    counted = dataclasses.replace(sizes, step=0, pieces=0).at_once(task.rows.n, m)
    memory.require_free(
        max(certain, round(_LEAST_OF_COUNTED * counted)),
        "a kernel inside a transformation, which is one block of its program",
        memory.free_memory,
        "Call ntk outside of jax.jit, where it is computed block by block, or take fewer examples.",
    )


def _key(task: Task) -> tuple:
    """Equal for tasks of one program that have the same plan."""
    shape = task.rows.basis_shape.shape
    keys = tuple(way.key for way in task.rows.ways)
    groups = task.reduction.groups
    shape_of_groups = None if groups is None else groups.rows.shape
    tile = task.tile(task.rows.n, 0 if task.columns is None else task.m)
    sums = task.gram.n_groups, task.is_plain_sum
    name = task.reduction.name
    cut = task.call.options.most_examples
    return "plan", keys, name, shape, tile, task.dtype, shape_of_groups, sums, cut, Machine.here()


def _plan(task: Task, ways: tuple[Way, ...], budget: int) -> Plan:
    """The plan of a task with these ways of contracting it."""
    options = task.call.options
    n = task.rows.n
    m = 0 if task.columns is None else task.m
    # How examples are cut.
    network = _network_cost(task, ways)
    sizes, shares = _sizes(task, ways, network)
    blocks = Blocks.largest(n, m, sizes, budget, cheaper_choices(task))
    if options.most_examples is not None:
        blocks = blocks.at_most(options.most_examples, n, m)
    again_bytes = blocks.again * blocks.size * sizes.factors
    if options.spill is not None:
        blocks = blocks.with_file

    # What it costs. Every group of outputs is a kernel of its own.
    groups = task.reduction.groups
    n_groups = 1 if groups is None else groups.n_diagonal * groups.n_traced
    # Examples, counted as often as they are differentiated.
    differentiated = n_groups * blocks.passes * (n + m)
    pairs = n * m if m else n * (n + 1) // 2  # a rectangle, or a triangle with its diagonal
    pairs *= n_groups
    rows = tuple(_row(task, way, differentiated, pairs) for way in ways)
    # The trace of the network passes forms the dense factors; they are counted with their rows.
    forming = sum(2 * way.form for way in ways if way.is_dense)
    return Plan(
        rows=rows,
        blocks=blocks,
        ways=ways,
        n=n,
        m=m or n,
        reduction=task.reduction.name,
        directions=task.rows.directions.n * n_groups,
        network_flops=round((network.flops - forming) * differentiated),
        contraction_flops=sum(row.flops for row in rows),
        passes=blocks.passes,
        peak_bytes=blocks.peak,
        budget_bytes=budget,
        shares=shares,
        again_bytes=again_bytes,
    )


def _network_cost(task: Task, ways: tuple[Way, ...]) -> JaxprCost:
    """What forward pass, backward passes and factors of one example cost."""
    program = task.rows.program
    trace = program.trace(ways, task.rows.basis_shape, merged=task.is_plain_sum)
    return program.keep(("cost", trace), lambda: jaxpr_cost(trace.jaxpr, trace.varying_inputs))


def _sizes(task: Task, ways: tuple[Way, ...], network: JaxprCost) -> tuple[Sizes, int]:
    """Bytes that decide how examples are cut, and how many sums of pieces are made side by side."""
    machine = Machine.here()
    n_columns = 0 if task.columns is None else task.m
    n_examples = task.rows.n + n_columns
    itemsize = jnp.dtype(task.rows.program.jacobian.dtype).itemsize
    n_kernels = task.gram.n_groups
    # The results: what one pair of examples takes in one kernel, and all kernels there will be.
    pair = task.dtype.itemsize * math.prod(task.tile(1, 1).shape)
    output = pair * task.rows.n * task.m
    if n_kernels > 1:
        output *= n_kernels + 1  # with kernels of several leaves there is their sum, too
    if task.reduction.groups is not None:
        output *= task.reduction.groups.n_diagonal

    # Jacobians that are contracted piece by piece: what exists of them is a piece for each worker,
    # no larger than the largest Jacobian, with what it is formed of.
    in_pieces = [way for way in ways if task.is_plain_sum and way.forms_jacobian]
    rows_of_jacobian = n_examples * task.rows.directions.n
    jacobians = [rows_of_jacobian * way.part.size * itemsize for way in in_pieces]
    operands = [n_examples * way.operand * itemsize for way in ways if way.name == "streamed"]
    piece = _PIECE_COPIES * min(machine.piece_of(n_examples), max(jacobians, default=0))
    piece += max(operands, default=0)
    # Each of the workers that share out the pieces adds them to a kernel of its own.
    shares = machine.shares(n_examples, output)
    sums_of_pieces = shares * output if in_pieces else 0
    # In a kernel of several tiles there are pieces too, unless all directions are paired.
    piece_of_a_tile = 0
    if in_pieces and task.reduction.contraction != "full":
        piece_of_a_tile = _PIECE_COPIES * machine.workers * machine.piece

    # All other factors of several steps are joined, which copies them.
    size_of_factors = sum(way.size for way in ways)
    joined = size_of_factors - sum(way.size for way in in_pieces)
    sizes = Sizes(
        factors=size_of_factors * itemsize,
        working=network.peak,
        shared=network.shared,
        pair=pair * n_kernels,
        output=output,
        step=max(1, machine.step // max(1, network.peak)),
        in_flight=machine.in_flight,
        joined=joined * itemsize,
        pieces=machine.workers * piece + sums_of_pieces,
        piece=piece_of_a_tile,
        strips=copies_at_once(task.tile(task.rows.n, task.m)),
    )
    return sizes, shares


def _row(task: Task, way: Way, differentiated: float, pairs: int) -> PlanRow:
    """One part of the plan, for so many examples differentiated and so many pairs contracted."""
    program = task.rows.program
    sites = (*way.part.sites, *way.part.added_sites)
    primitives = tuple(dict.fromkeys(site.primitive for site in sites))
    return PlanRow(
        paths=tuple(program.paths[leaf] for leaf in way.part.leaves),
        primitives=primitives or ("vjp",),
        factor=way.name,
        flops=round(2 * way.form * differentiated + 2 * way.gram * pairs),
        bytes=way.size * jnp.dtype(program.jacobian.dtype).itemsize,
    )


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
