"""A measurement as a pure function, for training frameworks that have hooks of their own."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag import errors
from ntkdiag.engine.calls.call import Memory
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.monitor.instruments.catalogue import InstrumentsLike, named
from ntkdiag.monitor.instruments.choosing import Supply, instrument_set_for
from ntkdiag.monitor.measurement import flat
from ntkdiag.monitor.measurer import Measurer
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.schedule import Step
from ntkdiag.monitor.train_state import by_path
from ntkdiag.monitor.training_step import TrainingStep, as_optimizer
from ntkdiag.probe_batch import Pair, read_probes

if TYPE_CHECKING:
    import optax


@errors.public
def measure(
    f: Callable[..., PyTree],
    *,
    train: Pair | None = None,
    held_out: Pair | None = None,
    loss: LossLike | None = None,
    optimizer: "optax.GradientTransformation | optax.MultiSteps | None" = None,
    instruments: InstrumentsLike = ("economy", "spectral"),
    top_k: int | np.integer = 5,
    reduction: ReductionLike = "auto",
    memory: Memory | None = None,
) -> Callable[..., dict[str, Array]]:
    """A measurement as a pure function `(params, opt_state, updates) -> {name: scalar}`.

    For frameworks with hooks of their own: call it inside a compiled step, or `jax.jit` it. It has
    no state: it remembers nothing from one call to the next, the margin begins with random vectors
    each time, and there is no drift.

    Cost: that of the instruments; the margin takes about eight more
    products than in `ntkdiag.watch`, which remembers.

    Args:
        f: As for `ntkdiag.watch`, as all that follow.
        train: Training examples and labels.
        held_out: Held-out examples and labels.
        loss: The loss that is trained.
        optimizer: The optimizer of Optax; None leaves out what it does with a gradient.
        instruments: What is measured; those for which something is missing are left out.
        top_k: Eigenvalues of the kernel tier.
        reduction: Reduction of its kernel.
        memory: Its memory budget.

    Returns:
        A function `measured(params, opt_state=None, updates=None, *, gradient=None,
        model_state=None, step=0)`, with parameters before the update and the state of the optimizer
        as a `Monitor` takes them. It returns "margin", "margin_lower", ...; arrays come as
        "layer_gradient/Dense_0/kernel" by layer, and "curvatures/0" by number.

    Raises:
        InvalidInputError: As `ntkdiag.watch`.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntkdiag
        >>> train = (jnp.eye(8), jnp.arange(8.0)[:, None])
        >>> measured = ntkdiag.monitor.measure(
        ...     lambda w, x: x @ w, train=train, loss="mse", instruments="economy"
        ... )
        >>> sorted(measured(jnp.ones((8, 1))))[:3]
        ['layer_parameter/', 'layer_trace/', 'layer_trace_lower/']
    """
    probe = Probe.of(
        f,
        read_probes(train, held_out),
        top_k=top_k,
        loss=loss,
        reduction=reduction,
        memory=memory,
    )
    named(instruments)  # refuses what it does not know
    transform = None if optimizer is None else as_optimizer(optimizer)
    measurer = Measurer.of(probe, transform)

    def measured(
        params: PyTree,
        opt_state: PyTree = None,
        updates: PyTree = None,
        *,
        gradient: PyTree = None,
        model_state: PyTree = None,
        step: Step = 0,
    ) -> dict[str, Array]:
        training_step = TrainingStep(
            params,
            gradient=gradient,
            update=updates,
            state_after=opt_state,
            model_state=by_path(f, model_state),
        )
        matched = measurer.match(training_step)
        layout = probe.layout(matched.params)
        knows_optimizer = transform is not None and opt_state is not None
        supply = Supply(probe, has_update=updates is not None, has_optimizer=knows_optimizer)
        instrument_set = instrument_set_for(instruments, supply, layout, matched.params)
        memories = instrument_set.blank_memories(probe, layout)
        with jax.named_scope("ntkdiag"):
            reading = measurer.take(
                instrument_set, layout, training_step, memories, step, measurements=0
            )
        numbers = flat(reading.estimates) | {"status": reading.status}
        return _scalars(numbers, measurer.layer_names(matched.params))

    return measured


def _scalars(numbers: Mapping[str, Array | np.ndarray], layers: Sequence[str]) -> dict[str, Array]:
    """Every number under a name of its own."""
    scalars = {}
    for name, value in numbers.items():
        if jnp.ndim(value) == 0:
            scalars[name] = jnp.asarray(value)
            continue
        parts = layers if name.startswith("layer_") else map(str, range(len(value)))
        for part, number in zip(parts, value, strict=True):
            scalars[f"{name}/{part}"] = number
    return scalars
