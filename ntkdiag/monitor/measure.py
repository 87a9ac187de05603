"""One measurement: a pure function from a point and a memory to numbers and the next memory.

`Monitor`, `watch`, `compare`, `track` and `ntkdiag.monitor.measure` call it and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from ntkdiag import errors
from ntkdiag.arrays import on_automatic_axes, with_arrays
from ntkdiag.kernel.working_precision import usual_promotion
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.models.paths import leaves_by_path
from ntkdiag.monitor.context import Context, Estimates, Instrument, Rows
from ntkdiag.monitor.instruments.catalogue import InstrumentsLike, chosen
from ntkdiag.monitor.measurement import Status, by_part, flat
from ntkdiag.monitor.point import Point
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import Derivatives, Job, Products, multiply, sums_of_squares
from ntkdiag.monitor.schedule import Step
from ntkdiag.monitor.train_state import by_path
from ntkdiag.probe_batch import Pair

if TYPE_CHECKING:
    import optax

# Name of an instrument -> the rows that it keeps, if any; zeros before the first measurement.
Memory: TypeAlias = Mapping[str, Rows]
_NO_ROWS = np.zeros((0, 0), np.float32)


class Numbers(NamedTuple):
    """What a measurement found."""

    estimates: Estimates
    status: Int[Array, ""]  # a `Status`
    memory: Memory


def blank_memory(
    probe: Probe, instruments: Sequence[Instrument], shape: jax.ShapeDtypeStruct
) -> Memory:
    """The memory before the first measurement."""
    return {
        one.name: jnp.zeros((one.n_rows(probe), *shape.shape), shape.dtype)
        for one in instruments
        if one.n_rows(probe)
    }


def measure_point(
    probe: Probe,
    instruments: Sequence[Instrument],
    point: Point,
    memory: Memory,
    step: Int[Array, ""] | int,
    is_first: Bool[Array, ""] | bool,
) -> Numbers:
    """The numbers of a point, NaN where they cannot be trusted; traced by JAX."""
    found = numbers_at(probe, instruments, point, memory, step, is_first)
    is_lost = found.status == Status.NON_FINITE
    known = {}
    for name, estimate in found.estimates.items():
        if not says_where(name):
            estimate = jax.tree.map(lambda leaf: jnp.where(is_lost, jnp.nan, leaf), estimate)
        known[name] = estimate
    return found._replace(estimates=known)


def says_where(name: str) -> bool:
    """Whether a number is told of a point that is not finite: norms say which layers are not."""
    return name in ("layer_gradient", "layer_parameter")


@on_automatic_axes
@usual_promotion()
def numbers_at(
    probe: Probe,
    instruments: Sequence[Instrument],
    point: Point,
    memory: Memory,
    step: Int[Array, ""] | int,
    is_first: Bool[Array, ""] | bool,
) -> Numbers:
    """The numbers of a point, also of one that is not finite; traced by JAX."""
    point, memory, step, is_first = with_arrays((point, memory, step, is_first), "point")
    is_first = jnp.asarray(is_first)
    context = Context.of(probe, point, step, is_first)
    is_finite = jnp.asarray(True) if probe.f is None else jnp.isfinite(context.outputs).all()
    if context.gradient is not None:
        is_finite &= jnp.isfinite(sums_of_squares(context.gradient).sum())
    rows_of = {one.name: memory.get(one.name, jnp.asarray(_NO_ROWS)) for one in instruments}
    wanted = {one.name: one.jobs(context, rows_of[one.name]) for one in instruments}
    jobs = [job for of_instrument in wanted.values() for job in of_instrument]
    remaining = iter(_products(context, jobs, is_finite).split(jobs) if jobs else ())
    estimates: Estimates = {}
    kept = {}
    for instrument in instruments:
        products = [next(remaining) for _ in wanted[instrument.name]]
        rows = rows_of[instrument.name]
        numbers, after = instrument.read(context, products, rows)
        estimates |= numbers
        if instrument.name in memory:  # a point that is not finite leaves it as it was
            kept[instrument.name] = jnp.where(is_finite, after.astype(rows.dtype), rows)
    status = jnp.where(is_finite, Status.MEASURED, Status.NON_FINITE).astype(jnp.int32)
    return Numbers(estimates, status, kept)


def _products(context: Context, jobs: Sequence[Job], is_finite: Array) -> Products:
    """The products of all jobs; zeros at a point that is not finite."""
    has_curved = any(job.is_curved for job in jobs)
    shape = context.outputs.shape
    if has_curved:
        context.curve(context.outputs)  # once for all numbers, outside of the branch

    def multiplied() -> Products:
        derivatives = Derivatives(context.pull, context.push)
        if has_curved:
            # The response is as large as the parameters, and is there in this branch only.
            derivatives = derivatives._replace(
                curve=lambda change: context.curve(context.without_constants(change)),
                response=context.response_by_parameter(),
            )
        return multiply(derivatives, jobs, context.is_first, shape)

    n_layers = len(jax.tree.leaves(context.params))
    return jax.lax.cond(is_finite, multiplied, lambda: Products.blank(jobs, n_layers))


@errors.public
def measure(
    f: Callable[..., PyTree],
    *,
    train: Pair | None = None,
    held_out: Pair | None = None,
    loss: LossLike | None = None,
    optimizer: "optax.GradientTransformation | optax.MultiSteps | None" = None,
    instruments: InstrumentsLike = "auto",
    n_train: int | np.integer | None = None,
    batch_size: int | None = None,
    top_k: int | np.integer = 5,
) -> Callable[..., dict[str, Array]]:
    """A measurement as a pure function `(params, opt_state, gradient) -> {name: scalar}`.

    For frameworks with hooks of their own: call it inside a compiled step, or `jax.jit` it. It
    remembers nothing from one call to the next, takes as many products as the first measurement of
    `ntkdiag.watch` each time, and has no drift. Its arguments are those of `ntkdiag.watch`; without
    an optimizer, what it does with a gradient is left out.

    Returns:
        A function `measured(params, opt_state=None, gradient=None, *, model_state=None, step=0)`,
        with parameters and the state of the optimizer between two steps, and the last gradient;
        None takes that of the probe. It returns "margin", "margin_lower", ...; arrays come as
        "layer_gradient/Dense_0/kernel" by layer, and "eigenvalues/0" by number.

    Raises:
        InvalidInputError: As `ntkdiag.watch`.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntkdiag
        >>> train = (jnp.eye(8), jnp.arange(8.0)[:, None])
        >>> measured = ntkdiag.monitor.measure(
        ...     lambda w, x: x @ w, train=train, loss="mse", instruments="norms"
        ... )
        >>> round(float(measured(jnp.ones((8, 1)))["loss"]), 2)
        5.75
    """
    probe = Probe.of(
        f,
        train=train,
        held_out=held_out,
        loss=loss,
        optimizer=optimizer,
        top_k=top_k,
        n_train=n_train,
        batch_size=batch_size,
    )
    selected, _ = chosen(instruments, probe)

    def measured(
        params: PyTree,
        opt_state: PyTree = None,
        gradient: PyTree = None,
        *,
        model_state: PyTree = None,
        step: Step = 0,
    ) -> dict[str, Array]:
        point = Point(params, opt_state, gradient, by_path(f, model_state))
        matched = probe.match(point)
        memory = blank_memory(probe, selected, probe.fit(matched.params))
        with jax.named_scope("ntkdiag"):
            numbers = measure_point(probe, selected, point, memory, jnp.asarray(step), True)
        estimates = {name: e for name, e in numbers.estimates.items() if name != "drift"}
        layers = tuple(leaves_by_path(matched.params))
        parts = by_part(flat(estimates) | {"status": numbers.status}, layers)
        return {name: jnp.asarray(number) for name, number in parts.items()}

    return measured
