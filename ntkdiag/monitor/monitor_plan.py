"""What a monitor will cost, as a share of training, before training starts."""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import PyTree

from ntkdiag import display, errors
from ntkdiag.engine.calls.arguments import as_jax_has_it
from ntkdiag.engine.calls.call import Memory
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.models.functional import Functional
from ntkdiag.monitor.forward_cost import forward_flops
from ntkdiag.monitor.instrument_set import InstrumentSet
from ntkdiag.monitor.instruments.catalogue import InstrumentsLike
from ntkdiag.monitor.instruments.choosing import Supply, instrument_set_for, kernel_forwards
from ntkdiag.monitor.instruments.instrument import Instrument
from ntkdiag.monitor.measurement_plan import MeasurementPlan
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.schedule import ScheduleLike
from ntkdiag.monitor.time_budget import Budget, cost_in_words
from ntkdiag.probe_batch import Pair, read_probes

# What the outputs, which all instruments share, are called in the table.
_SHARED = "outputs (shared)"


@dataclasses.dataclass(frozen=True)
class InstrumentCost:
    """What one instrument costs: an entry of a `MonitorPlan`, which describes the fields."""

    name: str
    tier: str
    forwards: float
    step_share: float
    run_share: float
    flops: float


@dataclasses.dataclass(frozen=True)
class MonitorPlan:
    """What a monitor costs; print it for a table.

    A training step on B examples is counted as 3 B forward passes, one for the outputs and two for
    the gradient.

    Attributes:
        instruments: What each costs, and the pass they share: its `name` and `tier`; `forwards`,
            forward passes for each probe example, where a backward pass counts as two;
            `step_share`, one measurement as a share of one training step; `run_share`, all
            measurements as a share of the run; `flops`, floating-point operations of one
            measurement.
        n_examples: Examples measured.
        batch_size: Examples of one training step.
        period: Steps between two measurements.
        notes: What was chosen and what was left out.
        kernel: Memory and seconds of the kernel tier, a `MeasurementPlan`; None without it.
    """

    instruments: tuple[InstrumentCost, ...]
    n_examples: int
    batch_size: int
    period: int
    notes: tuple[str, ...]
    kernel: MeasurementPlan | None = None

    @property
    def step_share(self) -> float:
        """One measurement, as a share of one training step."""
        return sum(cost.step_share for cost in self.instruments)

    @property
    def run_share(self) -> float:
        """All measurements, as a share of the run."""
        return sum(cost.run_share for cost in self.instruments)

    def to_dict(self) -> dict[str, display.PlainValue]:
        """Plain values as JSON has them."""
        totals = {"step_share": self.step_share, "run_share": self.run_share}
        kernel = None
        if self.kernel is not None:
            kernel = {"bytes": self.kernel.bytes, "seconds": self.kernel.seconds}
        without_kernel = dataclasses.replace(self, kernel=None)
        return display.plain(dataclasses.asdict(without_kernel) | totals | {"kernel": kernel})

    def __str__(self) -> str:
        """A line for each instrument, and the sum."""
        lines = [
            f"{self.n_examples} examples every {self.period} steps, beside steps of "
            f"{self.batch_size} examples",
            f"{'instrument':<20}{'tier':<10}{'passes':>8}{'of a step':>12}{'of the run':>12}",
        ]
        for cost in self.instruments:
            lines.append(
                f"{cost.name:<20}{cost.tier:<10}{cost.forwards:>8.3g}"
                f"{100 * cost.step_share:>10.3g} %{100 * cost.run_share:>10.2g} %"
            )
        total = sum(cost.forwards for cost in self.instruments)
        lines.append(
            f"{'together':<30}{total:>8.3g}{100 * self.step_share:>10.3g} %"
            f"{100 * self.run_share:>10.2g} %"
        )
        if self.kernel is not None:
            lines.append(f"The kernel tier is {self.kernel}.")
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        rows = []
        for cost in self.instruments:
            share = f"{100 * cost.run_share:.2g} % of the run"
            rows.append((f"{cost.name} ({cost.tier})", f"{100 * cost.step_share:.3g} %", share))
        total = f"{100 * self.run_share:.2g} % of the run"
        rows.append(("together", f"{100 * self.step_share:.3g} %", total))
        return display.html_table("Measurements, as a share of one training step", rows)


@errors.public
def plan(
    f: Callable[..., PyTree],
    params: PyTree = None,
    *,
    train: Pair | None = None,
    held_out: Pair | None = None,
    loss: LossLike | None = None,
    every: ScheduleLike = "auto",
    instruments: InstrumentsLike = "auto",
    time_share: float | int | np.number | None = None,
    batch_size: int | None = None,
    top_k: int | np.integer = 5,
    reduction: ReductionLike = "auto",
    memory: Memory | None = None,
) -> MonitorPlan:
    """What a monitor costs, as a share of the work of training; nothing is computed.

    Work is counted in forward passes F of one example: a training step on B examples is 3 F B, a
    measurement on n examples (1 + sum over instruments) F n. Examples may be shapes
    (`jax.ShapeDtypeStruct`), and so may parameters.

    Cost: tracing f, and planning a kernel where one is asked for.

    Args:
        f: As for `ntkdiag.watch`.
        params: Parameters; those of the `Functional` by default.
        train: As for `ntkdiag.watch`, as all that follow.
        held_out: Held-out examples.
        loss: The loss.
        every: The schedule; of a function, 100 steps are counted.
        instruments: What is measured.
        time_share: The largest share.
        batch_size: Examples of one training step; those of `train` where it is not said.
        top_k: Eigenvalues of the kernel tier.
        reduction: Reduction of its kernel.
        memory: Its memory budget.

    Returns:
        The plan, which prints as a table.

    Raises:
        InvalidInputError: As `ntkdiag.watch`; a plain function needs parameters.
        MemoryBudgetError: The kernel tier was asked for, and does not fit into `memory`.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntkdiag
        >>> w = jnp.ones((8, 1))
        >>> train = (jnp.eye(8), jnp.arange(8.0)[:, None])
        >>> plan = ntkdiag.monitor.plan(lambda w, x: x @ w, w, train=train, every=100)
        >>> plan.n_examples, plan.period
        (8, 100)
    """
    if params is None and isinstance(f, Functional):
        params = f.params
    if params is None:
        raise errors.InvalidInputError(
            expected="params beside a plain function",
            got="None",
            do="plan(f, params, train=(x, y)).",
        )
    params = as_jax_has_it(params)
    probe = Probe.of(
        f,
        read_probes(train, held_out),
        top_k=top_k,
        descent=None,
        loss=loss,
        reduction=reduction,
        memory=memory,
    )
    layout = probe.layout(params)
    budget = Budget.of(every, time_share, batch_size)
    supply = Supply(probe, has_update=True, has_optimizer=True)
    instrument_set = instrument_set_for(instruments, supply, layout, params, budget)
    return plan_of_instrument_set(instrument_set, supply, layout, params, budget)


def plan_of_instrument_set(
    instrument_set: InstrumentSet,
    supply: Supply,
    layout: ProbeLayout,
    params: PyTree,
    budget: Budget,
) -> MonitorPlan:
    """What the instruments of a set cost, at parameters that f takes."""
    probe = supply.probe
    kernel = probe.plan(params, layout) if instrument_set.has("kernel") else None
    n_examples = layout.n_examples
    flops = n_examples * forward_flops(probe.function, params, probe.x)
    step_forwards = 3.0 * budget.batch(layout) / n_examples
    period = budget.wait(instrument_set.steps)

    def cost(name: str, tier: str, forwards: float) -> InstrumentCost:
        share = forwards / step_forwards
        return InstrumentCost(name, tier, forwards, share, share / period, forwards * flops)

    def cost_of(instrument: Instrument) -> InstrumentCost:
        forwards = instrument.forwards(layout)
        if instrument.tier == "kernel":
            forwards = kernel_forwards(supply, layout, params) / n_examples
        return cost(instrument.name, instrument.tier, forwards)

    costs = [cost_of(instrument) for instrument in instrument_set.instruments]
    if instrument_set.compiled:
        costs.insert(0, cost(_SHARED, "", 1.0))
    return MonitorPlan(
        tuple(costs),
        n_examples=n_examples,
        batch_size=budget.batch(layout),
        period=period,
        notes=(
            *instrument_set.notes,
            f"With what is no pass, {cost_in_words(instrument_set, budget)}.",
        ),
        kernel=kernel,
    )
