"""An Optax transform that watches the kernel during training and leaves the updates alone.

An Optax transform is two functions, `init` and `update`, and a state. Here

1. `init` makes a state in which every array has its final size, so that it can go through
   `jax.lax.scan` and into checkpoints;
2. `update` asks the schedule whether the step is measured: under `jax.jit` the answer is traced,
   and the measurement stands in a branch of a `jax.lax.cond`;
3. a measurement goes into the state, and through a callback to the writers on the host. Without
   writers there is no callback: it would keep JAX from caching the compiled step, and from its
   fastest way to call it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag._jax import warn_if_untrusted_jit
from ntkdiag.descent import DescentLike
from ntkdiag.engine.calls.call import Memory
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.monitor.measurement import QUANTITIES, Measurement, Status
from ntkdiag.monitor.never_raise import (
    FailureNotice,
    warnings_as_warnings,
    without_debugging_switches,
)
from ntkdiag.monitor.optimizer_parameters import as_parameters_of, split_arrays
from ntkdiag.monitor.outbox import Outbox
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.record import convention_record
from ntkdiag.monitor.schedule import Schedule, ScheduleLike, as_schedule
from ntkdiag.monitor.writers import Writer
from ntkdiag.probe_batch import Pair, read_probes

if TYPE_CHECKING:
    import optax


class WatchState(NamedTuple):
    """State of `watch` inside the optimizer state: the last measurement, as in `Measurement`.

    Every array has its final size from `init` on; numbers are NaN until they are measured, the
    kernel is 0. Read a field from any optimizer state with
    `optax.tree_utils.tree_get(opt_state, "ntk_eigenvalues")`.

    Attributes:
        ntk_count: Number of updates seen.
        ntk_kernel0: The first kernel measured, `[K K]`; drift is measured from it.
        ntk_reference_step: The step of that kernel, -1 before.
        ntk_probe: The beginning of a hash of the probe it is for, its outputs and the reduction; a
            state restored with another one begins anew.
        ntk_step: The step of the last measurement, -1 before the first.
        ntk_status: Its `Status`.
        ntk_eigenvalues: See `Measurement`, as for the fields below. `[top_k]`.
        ntk_trace: Sum of the eigenvalues.
        ntk_participation_ratio: Effective number of modes.
        ntk_drift: Relative change since `ntk_kernel0`.
        ntk_distance_centred: Change of direction since `ntk_kernel0`.
        ntk_alignment: Centred alignment with the labels.
        ntk_alignment_chance: Its mean over permuted labels.
        ntk_alignment_standard_deviation: Its standard deviation over them.
        ntk_alignment_above: The part of it above chance.
        ntk_critical_learning_rate: Largest stable learning rate of gradient descent.
        ntk_margin: Learning rate over the critical one.
    """

    ntk_count: Int[Array, ""]
    ntk_kernel0: Float[Array, "k k"]
    ntk_reference_step: Int[Array, ""]
    ntk_probe: Int[Array, "2"]
    ntk_step: Int[Array | np.ndarray, ""]
    ntk_status: Int[Array | np.ndarray, ""]
    ntk_eigenvalues: Float[Array, " top_k"]
    ntk_trace: Float[Array, ""]
    ntk_participation_ratio: Float[Array, ""]
    ntk_drift: Float[Array, ""]
    ntk_distance_centred: Float[Array, ""]
    ntk_alignment: Float[Array, ""]
    ntk_alignment_chance: Float[Array, ""]
    ntk_alignment_standard_deviation: Float[Array, ""]
    ntk_alignment_above: Float[Array, ""]
    ntk_critical_learning_rate: Float[Array, ""]
    ntk_margin: Float[Array, ""]


@errors.public
def watch(
    f: Callable[..., PyTree],
    *,
    train: Pair | None = None,
    held_out: Pair | None = None,
    every: ScheduleLike = 100,
    top_k: int | np.integer = 5,
    loss: LossLike | None = None,
    descent: DescentLike | None = None,
    reduction: str = "auto",
    writers: Writer | Sequence[Writer] = (),
    name: str = "ntk",
    memory: Memory | None = None,
) -> "optax.GradientTransformationExtraArgs":
    """Watch the neural tangent kernel of `f` on a probe batch, from inside an Optax chain.

    The transform hands `updates` on untouched and measures at the scheduled steps the kernel at the
    parameters *before* the update: step 0 is initialisation. Inside `jax.jit` and `jax.lax.scan`
    the choice is a `jax.lax.cond`, and a step that is not scheduled computes one comparison. The
    last measurement is in the state.

        watch = ntkdiag.watch(fn, train=(x, y), every=100, loss="cross_entropy", descent=0.1)
        tx = optax.chain(optax.sgd(0.1), watch)

    Writers are called on the host from inside the compiled step, asynchronously: call
    `jax.effects_barrier()` before reading what they wrote. A writer that raises is tried again,
    with one warning; one that hangs is not waited for.

    Cost: per measurement one kernel and its eigenvalues, K^3, with K = N C for the full kernel, N
    for a reduced one; a second set of eigenvalues for losses other than squared error. In memory
    the first kernel, K^2 numbers.

    Args:
        f: A `Functional`, or any `f(params, x)` that returns `[N ...]`, for the parameters the
            optimizer trains. It is traced once: what it reads beside its arguments is fixed then.
        train: Examples of the training set with their labels, (x, y): N examples on the leading
            axis of every leaf of x, 64 to 256 are enough; y `[N]` integer classes (`[N T]` for
            outputs `[N T V]`), targets shaped like the outputs, or None, which leaves the alignment
            out.
        held_out: Examples that are not trained on, with their labels. At least one of the two is
            given.
        every: Number of steps, or a schedule: `Every`, `LogSpaced`, `At`, any function of the step.
        top_k: Number of eigenvalues kept.
        loss: The loss that is trained: "mse", "cross_entropy", "sigmoid_cross_entropy", an object
            of `ntkdiag.losses` (which states what its sum is divided by), or a function
            `loss(outputs, y)`. None leaves out all numbers about stability, which depend on it.
        descent: How it is trained: a `Descent` with momentum and decay, or the learning rate of
            plain gradient descent, a number or a schedule of the step. None leaves the margin out.
            The plain kernel says nothing about Adam.
        reduction: Reduction of the kernel over outputs: "full", "mean", "trace", "sum-of-logits",
            or "auto", which is "full" up to 2048 rows and "mean" beyond. Reduced kernels have no
            learning rate and no margin.
        writers: Objects with `write(step, values)`, or one of them.
        name: First part of the names the writers see: "ntk" gives "ntk_trace".
        memory: Memory budget of a kernel, as in `ntkdiag.ntk`; not under `jax.jit`, where the
            kernel is one block.

    Returns:
        A gradient transformation. Its state has the fields of `Measurement`, each with ``ntk_``
        before its name, and `ntk_count`, the number of updates seen; read one from any optimizer
        state with `optax.tree_utils.tree_get(opt_state, "ntk_trace")`. `init` raises
        `StructureError` when the parameters are not those of `f`, `update` also `InvalidInputError`
        when it gets no parameters.

    Raises:
        InvalidInputError: When an argument is out of range, or, with a Functional, model and probe
            do not fit together.
    """
    import optax

    probe = Probe.of(
        f,
        read_probes(train, held_out),
        top_k=top_k,
        descent=descent,
        loss=loss,
        reduction=reduction,
        memory=memory,
    )
    due = as_schedule(every)
    outbox = Outbox(writers)
    failure_notice = FailureNotice()
    call = errors.current_call()  # as code: errors of init and update begin with it

    @errors.called(f"{call}.init(params)")
    def init(params: PyTree) -> WatchState:
        """The state before training: all numbers NaN, no reference kernel yet."""
        params, _ = as_parameters_of(probe.f, params)
        layout = probe.layout(params)
        blank, kernel0 = probe.blank(layout)
        probe.verify(params)
        return _state(
            blank,
            count=jnp.zeros([], jnp.int32),
            kernel0=kernel0,
            reference_step=jnp.asarray(-1, jnp.int32),
            mark=jnp.asarray(probe.mark(layout)),
        )

    @warnings_as_warnings()
    def with_measurement(
        whole: Callable[[list[Any]], PyTree], state: WatchState, arrays: list[Any]
    ) -> WatchState:
        """The state with the measurement at these parameters, which the writers get, too."""
        params, unmoved = as_parameters_of(probe.f, whole(arrays))
        layout = probe.layout(params)
        # In a jit of the user the compiler options are not ours, and on some CPUs XLA's default
        # computes reductions wrongly.
        if isinstance(state.ntk_count, Tracer):
            is_float32 = layout.dtype == jnp.float32
            warn_if_untrusted_jit(reduces=is_float32 and probe.reduces(params))

        # Drift is measured from the first kernel; another probe has another first kernel.
        is_first = (state.ntk_reference_step < 0) | jnp.any(state.ntk_probe != probe.mark(layout))
        measurement, kernel0 = probe.measure(
            params,
            layout,
            state.ntk_kernel0,
            step=state.ntk_count,
            first=is_first,
            unmoved=unmoved,
            descent=probe.descent,
        )
        if outbox.writers:
            record = convention_record(probe, layout, name=name, every=due, source="watch")
            jax.debug.callback(functools.partial(_deliver, outbox, due, record), measurement)
        becomes_reference = is_first & (measurement.status == Status.MEASURED)
        return _state(
            measurement,
            count=state.ntk_count,
            kernel0=kernel0,
            reference_step=jnp.where(becomes_reference, state.ntk_count, state.ntk_reference_step),
            mark=jnp.asarray(probe.mark(layout)),
        )

    def as_it_is(state: WatchState, arrays: list[Any]) -> WatchState:
        """The other branch of the conditional, which has to take the same arguments."""
        del arrays
        return state

    @errors.called(f"{call}.update(updates, state, params)")
    def update(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, WatchState]:
        """The updates as they came, and the state one step later, measured if the step is due."""
        del extra_args  # values for other transforms of the chain
        # `state` is a WatchState; for Optax, which calls this, it may be any tree.
        if params is None:
            as_parameters_of(probe.f, params)  # refused at every step, measured or not
        count = state.ntk_count
        next_count = optax.safe_increment(count)
        if not isinstance(count, Tracer):
            return updates, outside_jit(state, params)._replace(ntk_count=next_count)
        # The branches of a conditional take arrays: functions and settings, which an Equinox module
        # has among its leaves, go round it.
        arrays, whole = split_arrays(params)
        is_due = due(count)
        if isinstance(is_due, Tracer):
            branch = functools.partial(with_measurement, whole)
            state = jax.lax.cond(is_due, branch, as_it_is, state, arrays)
        elif is_due:
            state = with_measurement(whole, state, arrays)
        return updates, state._replace(ntk_count=next_count)

    def outside_jit(state: WatchState, params: PyTree) -> WatchState:
        """The state measured if the step is due; what goes wrong is said, as nothing is compiled.

        Inside a jit it is raised where the step is compiled, before the first one.
        """
        step = int(state.ntk_count)  # schedules of users expect an int
        try:
            if not due(step):
                return state
            with without_debugging_switches():
                arrays, whole = split_arrays(params)
                return with_measurement(whole, state, arrays)
        except (KeyboardInterrupt, SystemExit):
            raise  # the user ends the run
        except BaseException as error:
            failure_notice.give(call, step, error)
            return state

    return optax.GradientTransformationExtraArgs(init, update)


def _state(
    measurement: Measurement,
    *,
    count: Int[Array, ""],
    kernel0: Float[Array, "k k"],
    reference_step: Int[Array, ""],
    mark: Int[Array, "2"],
) -> WatchState:
    """A measurement, and what the next one needs, as the state of the transform."""
    numbers = {f"ntk_{name}": getattr(measurement, name) for name in QUANTITIES}
    return WatchState(
        ntk_count=count,
        ntk_kernel0=kernel0,
        ntk_reference_step=reference_step,
        ntk_probe=mark,
        ntk_step=measurement.step,
        ntk_status=measurement.status,
        **numbers,
    )


def _deliver(
    outbox: Outbox, due: Schedule, record: dict[str, Any], measurement: Measurement
) -> None:
    """Send a measurement, on the host and during the step: an exception would end the run."""
    step = int(measurement.step)
    try:
        # `jax.vmap` makes the conditional compute at every step, scheduled or not.
        is_due = due(step)
    except Exception:  # a schedule of the user's own that takes traced steps only
        is_due = True
    if is_due:
        outbox.send(step, measurement.values(record["name"]), record)
