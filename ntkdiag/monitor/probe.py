"""What a monitor measures: model, probe batch, labels and settings.

A probe is made once, before training, and measured many times:

1. `Probe.of` checks the arguments and copies the examples, so that the loop cannot change them;
2. `layout` tells the shapes of the kernel, and refuses labels and settings that do not fit them;
3. `verify` checks once that examples do not interact, as soon as there are concrete parameters;
4. `measure` measures at the parameters of one step.

With a Functional, whose parameters are known, the first three happen where the probe is made;
with a plain function, where the first parameters come.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import _jax
from ntkdiag.engine.calls.arguments import is_traced
from ntkdiag.engine.calls.call import Memory
from ntkdiag.engine.independence import check_few
from ntkdiag.engine.ntk import plan
from ntkdiag.kernel.reduction import ReductionLike, automatic_of_held_out
from ntkdiag.losses import Loss
from ntkdiag.losses.alignable import alignable_targets
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.losses.loss_argument import LossLike, as_loss
from ntkdiag.losses.targets import require_labels_differ
from ntkdiag.models.dynamic_state import Following
from ntkdiag.models.functional import Functional
from ntkdiag.models.in_training import has_batch_statistics
from ntkdiag.monitor.checks import check_fit, check_settings, require_outputs
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.probe_batch import (
    ProbeBatch,
    Probes,
    read_n_train,
    require_label_of_each,
    shared_examples,
)

# Eigenvalues are found by products with vectors, which wait for the memory: their share of the
# rate of products.
_SHARE_OF_RATE = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """Everything a measurement needs besides the parameters."""

    f: Callable[..., PyTree]  # a Functional, or a callable `f(params, x)`
    x: PyTree  # examples the kernel is of; every leaf has leading axis N
    y: PyTree  # labels, as the loss takes them; None leaves the alignment out
    held_out: ProbeBatch | None  # examples the alignment is of, where they are others
    is_trained_on: bool  # whether x is of the training set; if not, there are no stability numbers
    n_shared: int  # held-out examples that are among those of x
    top_k: int  # number of eigenvalues
    loss: Loss | None  # the loss that is trained; None leaves all stability numbers out
    reduction: ReductionLike  # reduction of the kernel, or "auto"; see `ProbeLayout.of`
    memory: Memory | None  # memory budget of the kernel, as `ntk` takes it
    # SHA-256 of the probe examples, to tell two probes apart; None for examples that are being
    # traced.
    digest: str | None = None
    # Examples of the whole training set, of which those of the probe are some; None where it is not
    # known.
    n_train: int | None = None
    _verified: bool = dataclasses.field(init=False, default=False)

    @staticmethod
    def of(
        f: Callable[..., PyTree],
        probes: Probes,
        *,
        top_k: int | np.integer,
        loss: LossLike | None,
        reduction: ReductionLike,
        memory: Memory | None,
        n_train: int | np.integer | None = None,
    ) -> "Probe":
        """Check the arguments of `watch` and `Monitor`, and copy the examples to the host."""
        trained_loss = as_loss(loss)
        check_settings(f, top_k, reduction, memory)
        batch = probes.of_kernel
        if isinstance(trained_loss, CustomLoss):  # other losses look at shapes
            require_label_of_each(batch)
            require_label_of_each(probes.of_labels)
        has_both = probes.train is not None and probes.held_out is not None
        probe = Probe(
            f,
            x=jax.tree.map(_host_copy, batch.x),
            y=jax.tree.map(_host_copy, batch.y),
            held_out=_host_copy_of(probes.of_labels) if has_both else None,
            is_trained_on=probes.train is not None,
            n_shared=shared_examples(probes),
            top_k=int(top_k),
            loss=trained_loss,
            reduction=reduction,
            memory=memory,
            digest=batch.digest,
            n_train=read_n_train(n_train, probes),
        )
        if isinstance(f, Functional):
            probe.layout(f.params)
            probe.verify(f.params)
        return probe

    @property
    def function(self) -> Callable[..., PyTree]:
        """The pure function f(params, x), the same object for all measurements."""
        return self.f.apply if isinstance(self.f, Functional) else self.f

    @functools.cached_property
    def following(self) -> Following | None:
        """`f` with what it holds fixed as arguments; None where it is no Functional."""
        return Following(self.f) if isinstance(self.f, Functional) else None

    def followed(self, held: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Of the values in training of what `f` holds fixed, those it is to be evaluated with."""
        if self.following is None or self.following.functional.mode.startswith("train"):
            return {}
        return self.following.followed(held)

    def following_function(self) -> Callable[..., PyTree]:
        """`f(params, x, held=...)`: the same program serves at every step."""
        assert self.following is not None  # `followed` gives nothing to follow otherwise
        return self.following.function

    def mark(self, layout: ProbeLayout) -> Int[np.ndarray, "2"]:
        """Two integers that tell kernels apart which do not compare; 0 for traced examples."""
        if self.digest is None:
            return np.zeros(2, np.int32)
        convention = f"{self.digest} {layout.output_shape} {layout.reduction}"
        # 8 bytes are two integers of 32 bits, as JAX has them by default.
        return np.frombuffer(hashlib.sha256(convention.encode()).digest()[:8], np.int32)

    def layout(self, params: PyTree) -> ProbeLayout:
        """Shapes and reduction of the kernel, once settings and labels fit it."""
        outputs = require_outputs(self.f, params, self.x)
        # Numbers are float32 or wider, also where the model computes in bfloat16.
        dtype = _jax.at_least_float32(outputs.dtype)
        layout = ProbeLayout.of(tuple(outputs.shape), self.reduction, dtype)
        check_fit(layout, self.top_k, self.loss, self.y)
        if self.held_out is not None:
            held_out_outputs = require_outputs(self.f, params, self.held_out.x)
            targets = alignable_targets(self.held_out.y, held_out_outputs.shape, self.loss)
            if targets is not None:
                require_labels_differ(targets)
        return layout

    def reduction_of_alignment(self, layout: ProbeLayout) -> ReductionLike:
        """The reduction of the kernel that the alignment is of, as `ntk` takes it."""
        if self.held_out is None:
            return layout.reduction_for_ntk
        return automatic_of_held_out(self.reduction, layout.n_outputs)

    def verify(self, params: PyTree) -> None:
        """Check once, at the first parameters that are not traced, that examples do not interact.

        They do under batch norm in train mode. Cost: a forward pass of four examples together, and
        one of each alone.
        """
        if self._verified or is_traced(params, self.x):
            return
        # A chain may be built inside a trace, which would make traced values of known ones.
        with jax.ensure_compile_time_eval():
            check_few(self.function, params, self.x)
        # The one thing about a probe that changes: everything else is frozen.
        object.__setattr__(self, "_verified", True)

    def blank(self, layout: ProbeLayout) -> Float[Array, "k k"]:
        """The reference kernel before the first measurement."""
        return jnp.zeros((layout.size, layout.size), layout.dtype)

    def as_arguments(self, held: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Values of what f holds fixed, as `following_function` takes them."""
        assert self.following is not None
        return self.following.as_arguments(held)

    def kernel_flops(self, params: PyTree, layout: ProbeLayout) -> float:
        """Floating-point operations of products that take as long as the kernel tier."""
        planned = functools.partial(plan, self.function, params, memory=self.memory)
        flops = planned(self.x, reduction=layout.reduction_for_ntk).flops
        if self.held_out is not None:
            reduction = self.reduction_of_alignment(layout)
            flops += planned(self.held_out.x, reduction=reduction).flops
        # Beside a loss whose curvature is not constant, those of the kernel between its roots, too.
        needs_curvature = self.loss is not None and not self.loss.has_unit_curvature(self.y)
        decompositions = 2 if needs_curvature and not layout.is_reduced else 1
        of_eigenvalues = decompositions * 4 * layout.size**3 / 3
        return flops + of_eigenvalues / _SHARE_OF_RATE

    def normalises(self, layout: ProbeLayout, params: PyTree) -> bool:
        """Whether `f` normalises in float32, which XLA may compute wrongly in a `jit` of the user.

        See `warn_if_untrusted_jit`. Cost: tracing f.
        """
        if layout.dtype != jnp.float32:
            return False
        if isinstance(self.f, Functional):
            # In training, statistics of the batch take the place of those it holds.
            if has_batch_statistics(self.f):
                return True
            params = self.f.params
        return _jax.normalises(jax.make_jaxpr(self.function)(params, self.x))


def _host_copy_of(probe: ProbeBatch) -> ProbeBatch:
    """A probe whose arrays nobody else holds."""
    x, y = jax.tree.map(_host_copy, (probe.x, probe.y))
    return dataclasses.replace(probe, x=x, y=y)


def _host_copy(leaf: Any) -> Any:
    """A copy of an array of examples or labels, that the loop can neither donate nor change."""
    # Neither what is being traced nor random keys have values that NumPy could hold.
    is_random_key = jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.extended)
    if isinstance(leaf, Tracer) or is_random_key:
        return leaf
    return np.array(leaf)
