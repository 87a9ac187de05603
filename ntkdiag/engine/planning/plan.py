"""A plan: how a kernel will be computed and what that costs, as a table or plain values."""

import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import display, memory
from ntkdiag.engine.contracting.contraction_methods import Way
from ntkdiag.engine.planning.blocks import Blocks

# Of the rate of one large product, what a kernel reaches.
_EFFICIENCY = 0.5
# Bytes that compiling leaves behind, 100 to 165 MB where it was measured, program by program.
COMPILING = 150_000_000
# Columns of the printed table.
_WIDTH = 110
# The product whose rate stands for the machine: rows and columns, and how often it is timed.
_SIZE_OF_PRODUCT = 768
_TIMES = 5


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

    def to_dict(self) -> dict[str, Any]:
        """Plain values as JSON has them: the rows, the blocks, and all totals by name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del fields["ways"]  # jaxprs and shapes: nothing for a file
        fields["rows"] = [dataclasses.asdict(row) for row in self.rows]
        fields["blocks"] = dataclasses.asdict(self.blocks)
        return display.plain(fields | {"flops": self.flops})

    @property
    def _title(self) -> str:
        """What stands above the table."""
        return f"NTK of {self.n} x {self.m} examples, {self.directions} backward passes each"

    @property
    def _totals(self) -> list[str]:
        """What stands below the table."""
        tiles = f"{self.blocks.n_rows} x {self.blocks.n_columns or self.blocks.n_rows} tiles"
        return [
            f"network passes {self.network_flops:.3g} flops, contraction "
            f"{self.contraction_flops:.3g} flops, about {self.seconds:.2g} s",
            f"each example differentiated {self.passes:.3g} times, "
            f"{self.blocks.step} at a time; {tiles}",
            f"peak memory {memory.readable(self.peak_bytes)} of "
            f"{memory.readable(self.budget_bytes)} allowed; the first call compiles, which takes "
            f"about {memory.readable(COMPILING)} more",
        ]


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
