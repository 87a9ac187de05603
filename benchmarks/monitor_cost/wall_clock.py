"""Seconds, memory and compile time of a training with the hook beside the same one without.

Both run in turns in one process, and what is reported are medians of ratios of neighbours:

1. some steps that are not measured, without and with the hook, first the one and then the other;
2. one step that is measured, and one of the training without;
3. so until a period of `EVERY` steps is over, for some periods.

A ratio of the whole is (steps of a period with the hook) / (as many without).
"""

import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from rich.table import Table

from benchmarks.monitor_cost.training import ECONOMY, SPECTRAL, Instruments, Training

EVERY = 100
# Steps between two looks at the clock; three of them and one measurement make a period.
CHUNK = 33


@dataclasses.dataclass
class Run:
    """One training, compiled, and where it is.

    Attributes:
        step: The compiled step.
        variables: Of the network.
        opt_state: Of the optimizer, with that of the hook.
        batch: What is trained on, again and again.
        compile_seconds: Processor seconds of tracing and compiling, with the state's beginning.
    """

    step: Callable[..., Any]
    variables: PyTree
    opt_state: PyTree
    batch: PyTree
    compile_seconds: float

    def seconds(self, n_steps: int) -> float:
        """Wall-clock time of so many steps."""
        start = time.perf_counter()
        for _ in range(n_steps):
            self.variables, self.opt_state, loss = self.step(
                self.variables, self.opt_state, self.batch
            )
        jax.block_until_ready(loss)
        return time.perf_counter() - start

    @property
    def program_bytes(self) -> int:
        """Memory beside the arguments, as XLA plans it; results are in place of arguments."""
        memory = self.step.memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes

    @property
    def state_bytes(self) -> int:
        """Memory of the optimizer's state."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.opt_state))


@dataclasses.dataclass
class Race:
    """A training with the hook beside the one without.

    Attributes:
        training: Its name.
        instruments: What is measured.
        unmeasured: Ratios of steps that are not measured.
        period: Ratios of whole periods.
        measurement: A step with a measurement, in steps without.
        compile_ratio: What the hook adds to the time of compiling, over that of the step without.
        program_bytes: Memory that the hook adds to the program.
        state_bytes: Memory that it adds to the state.
    """

    training: str
    instruments: Instruments
    unmeasured: list[float]
    period: list[float]
    measurement: list[float]
    compile_ratio: float
    program_bytes: int
    state_bytes: int


def prepared(training: Training, instruments: Instruments) -> Run:
    """Compile a training, and make its first step, which is measured."""
    rng = np.random.default_rng(0)
    variables = training.variables(jax.random.key(0), _examples(training, rng, 1)[0])
    batch = _examples(training, rng, training.batch_size)
    probe = jax.tree.map(lambda leaf: leaf[: training.probe_size], batch)
    optimizer = training.watched(variables, probe, instruments, EVERY)

    def step(variables: PyTree, opt_state: PyTree, batch: PyTree) -> PyTree:
        return training.step(optimizer, variables, opt_state, batch)

    start = time.process_time()
    opt_state = optimizer.init(variables["params"])
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(variables, opt_state, batch)
    compiled = lowered.compile()
    run = Run(compiled, variables, opt_state, batch, time.process_time() - start)
    # Donated arrays are gone after a step: the two trainings must not share any.
    run.variables, run.opt_state = jax.tree.map(lambda leaf: leaf + 0, (variables, opt_state))
    run.seconds(1)
    return run


def race(training: Training, without: Run, instruments: Instruments, periods: int) -> Race:
    """Let both run in turns."""
    watched = prepared(training, instruments)
    for run in (without, watched):
        run.seconds(EVERY - 1)
    measurement = []
    unmeasured = []
    period = []
    for number in range(periods):
        alone = [without.seconds(1)]
        measured = watched.seconds(1)
        with_hook = [measured]
        for _ in range((EVERY - 1) // CHUNK):
            pair = (without, watched) if number % 2 else (watched, without)
            seconds = {id(run): run.seconds(CHUNK) for run in pair}
            alone.append(seconds[id(without)])
            with_hook.append(seconds[id(watched)])
            unmeasured.append(with_hook[-1] / alone[-1])
        period.append(sum(with_hook) / sum(alone))
        measurement.append(measured / (sum(alone) / EVERY))
    return Race(
        training.name,
        instruments,
        unmeasured,
        period,
        measurement,
        watched.compile_seconds / without.compile_seconds - 1.0,
        watched.program_bytes - without.program_bytes,
        watched.state_bytes - without.state_bytes,
    )


def table(trainings: Iterable[Training], periods: int) -> Table:
    """A row for each training and each choice of tiers."""
    made = Table(
        title=f"A probe of an eighth of the batch, every {EVERY} steps: medians of ratios",
        title_justify="left",
    )
    for name in ("training", "tiers"):
        made.add_column(name)
    for name in (
        "slower by",
        "unmeasured step",
        "measurement [steps]",
        "compiling, added",
        "memory added",
        "state added",
    ):
        made.add_column(name, justify="right")
    for training in trainings:
        without = prepared(training, ())
        for instruments in (ECONOMY, SPECTRAL):
            result = race(training, without, instruments, periods)
            made.add_row(
                training.name if instruments is ECONOMY else "",
                " + ".join(instruments),
                _percent(statistics.median(result.period) - 1.0),
                _percent(statistics.median(result.unmeasured) - 1.0),
                f"{statistics.median(result.measurement):.2f}",
                f"x {result.compile_ratio:.2f}",
                f"{result.program_bytes / 2**20:.1f} MiB",
                f"{result.state_bytes / 2**10:.1f} KiB",
            )
        made.add_section()
    return made


def without_cache() -> None:
    """Compile everything anew."""
    jax.config.update("jax_enable_compilation_cache", False)
    # The numbers are not looked at, only their cost.
    warnings.filterwarnings("ignore", message="XLA on this CPU", category=RuntimeWarning)


def _examples(training: Training, rng: np.random.Generator, n: int) -> PyTree:
    """Random inputs and labels."""
    x, y = training.examples(n)
    if training.is_language:
        tokens = rng.integers(0, training.module.vocabulary, (n, x.shape[1] + 1), np.int32)
        return tokens[:, :-1], tokens[:, 1:]
    inputs = rng.standard_normal(x.shape, np.float32)
    return inputs, rng.integers(0, 10, y.shape, np.int32)


def _percent(share: float) -> str:
    return f"{100 * share:+.2f} %"
