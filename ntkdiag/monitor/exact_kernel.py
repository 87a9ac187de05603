"""The exact kernel at points of training, measured as `track` measures a checkpoint."""

import numpy as np
from jaxtyping import PyTree

from ntkdiag.analysis.drift import drift
from ntkdiag.estimate import Estimate
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.measuring.measure import measure
from ntkdiag.measuring.probed_function import ProbedFunction
from ntkdiag.measuring.settings import read_settings
from ntkdiag.models.functional import Apply, Functional
from ntkdiag.models.in_training import Following
from ntkdiag.monitor.point import Matched
from ntkdiag.monitor.probe import Probe


class ExactKernel:
    """The numbers of the kernel of each point, and how far it is from that of the first."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        train, held_out = (probe.x, probe.y), None
        if not probe.is_trained_on:
            train, held_out = None, train
        elif probe.held_out is not None:
            held_out = probe.held_out.x, probe.held_out.y
        self._settings = read_settings(
            train, held_out, "full", probe.loss, None, None, n_train=probe.n_train
        )
        self._function: ProbedFunction | None = None
        self._first: Kernel | None = None

    def estimates(
        self, matched: Matched, step: int, outputs_of_one: tuple[int, ...]
    ) -> dict[str, Estimate]:
        """All single numbers that `track` gives, the largest eigenvalues, and the drift."""
        f, kwargs = self._probe.model, {}
        if isinstance(f, Functional):
            model, following = f, Following(f)
            held = following.followed(matched.held)
            f = f.apply
            if held:
                f = Apply(following.function, model.library, model.mode)
                kwargs = {"held": following.as_arguments(held)}
        if self._function is None:
            of = (f, matched.params, kwargs, self._settings, outputs_of_one)
            self._function = ProbedFunction.of(*of)
        measured = measure(self._function, matched.params, kwargs, step=step, detailed=False)
        first = self._first = self._first or measured.kernel
        moved = drift(first, measured.kernel)
        numbers: dict[str, PyTree] = dict(measured.numbers)
        numbers["eigenvalues"] = measured.eigenvalues[: self._probe.top_k]
        numbers |= {"drift": moved.relative, "distance_centred": moved.distance_centred}
        return {name: Estimate.exact(np.asarray(number)) for name, number in numbers.items()}
