"""What a measurement takes beside training: by plan, and by count of operations."""

import dataclasses
from collections.abc import Iterable

import jax
import numpy as np
from jaxtyping import PyTree
from rich.table import Table

import ntkdiag
from benchmarks.monitor_cost.counting import flops_in, products_in, program_of
from benchmarks.monitor_cost.training import ECONOMY, SPECTRAL, Instruments, Training
from ntkdiag.monitor import MonitorPlan
from ntkdiag.monitor.instruments.top_curvatures import TopCurvatures

EVERY = 100


@dataclasses.dataclass(frozen=True)
class Count:
    """Operations of a step that measures and of one that does not.

    Attributes:
        training: Of the step without the hook, by XLA.
        measurement: What the hook adds to a step with a measurement, by XLA.
        training_products: Convolutions and matrix products alone, likewise.
        measurement_products: The same of what the hook adds.
    """

    training: float
    measurement: float
    training_products: float
    measurement_products: float

    @property
    def run_share(self) -> float:
        """Of all measurements, beside the training, as XLA counts."""
        return self.measurement / (EVERY * self.training)

    @property
    def run_share_of_products(self) -> float:
        """The same of convolutions and matrix products."""
        return self.measurement_products / (EVERY * self.training_products)


def planned(training: Training, instruments: Instruments) -> MonitorPlan:
    """What `ntkdiag.monitor.plan` says of a training, from shapes."""
    shapes = training.variable_shapes()
    # Running statistics, which are few, are held by the function: they have to be arrays.
    arrays = {name: jax.tree.map(_zeros, tree) for name, tree in shapes.items() if name != "params"}
    return ntkdiag.monitor.plan(
        training.functional({"params": shapes["params"], **arrays}),
        train=training.examples(training.probe_size),
        loss="cross_entropy",
        every=EVERY,
        instruments=instruments,
        batch_size=training.batch_size,
    )


def counted(training: Training, tiers: Iterable[Instruments]) -> list[Count]:
    """The operations with some instruments, for each choice of them."""
    step, shapes = training.step_of_shapes(())
    without = program_of(step, *shapes)
    flops = flops_in(without, trips=1.0)
    products = products_in(without, trips=1.0)
    counts = []
    for instruments in tiers:
        step, shapes = training.step_of_shapes(instruments)
        program = program_of(step, *shapes)
        trips = _rounds_of_loops(planned(training, instruments))
        added = flops_in(program, trips) - flops
        counts.append(Count(flops, added, products, products_in(program, trips) - products))
    return counts


def _rounds_of_loops(plan: MonitorPlan) -> float:
    """Mean rounds of the loops whose number of rounds is no constant, 1 without: 4 F n for each."""
    iterated = [cost for cost in plan.instruments if cost.name in ("margin", "eigenvalues")]
    return sum(cost.forwards for cost in iterated) / (4.0 * len(iterated)) if iterated else 1.0


def average_passes(opt_state: PyTree) -> float:
    """Passes of the margin as the plan has them; a test counts them while it runs."""
    return TopCurvatures()._average_passes("margin" in opt_state.ntk_memory)


def table(trainings: Iterable[Training]) -> Table:
    """A row for each training and each choice of tiers."""
    made = Table(
        title=f"A probe of an eighth of the batch, every {EVERY} steps: share of the operations",
        title_justify="left",
    )
    for name in ("training", "tiers"):
        made.add_column(name)
    for name in ("step [TF]", "measurement [TF]", "by plan", "by count", "of products alone"):
        made.add_column(name, justify="right")
    for training in trainings:
        tiers = (ECONOMY, SPECTRAL)
        for instruments, count in zip(tiers, counted(training, tiers), strict=True):
            made.add_row(
                training.name if instruments is ECONOMY else "",
                " + ".join(instruments),
                f"{count.training / 1e12:.4g}",
                f"{count.measurement / 1e12:.4g}",
                _percent(planned(training, instruments).run_share),
                _percent(count.run_share),
                _percent(count.run_share_of_products),
            )
        made.add_section()
    return made


def _zeros(shape: jax.ShapeDtypeStruct) -> np.ndarray:
    return np.zeros(shape.shape, shape.dtype)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
