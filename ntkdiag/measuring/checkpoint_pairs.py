"""What lies between two checkpoints of a run: their kernels, and how far one predicts the other.

With K_i the kernel, U_i the leading modes of the centred one, f_i the outputs and theta_i the
parameters of checkpoint i, and s_i what the model holds beside them, such as running statistics:

    distance            S   = 1 - <K_i, K_j> / (||K_i|| ||K_j||), and S_c, centred over examples
    overlap             ||U_i^T U_j||_F^2 / m, of the m <= 10 leading modes that both resolve
    e1[i -> j]          ||f_j - f_lin|| / ||f_j - f_start||, the network linearized at i:
                        f_start = f(theta_i, s_j),  f_lin = f_start + J (theta_j - theta_i)
    agreement[i -> j]   share of the decisions of f_j that f_lin takes, too

The last two are one `jax.jvp` each. The pairs of a checkpoint with those before it are ways, there
and back, that one compiled program goes one after the other, a few dozen at a time. Statistics are
those of j throughout, so that what they did by themselves is no error of the prediction.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag.analysis.degenerate import centre_kernel
from ntkdiag.analysis.drift import unit_kernels
from ntkdiag.arrays import nan_if_unknown
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.precision import in_full_precision
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.measuring.decisions import Rule, agreement, decision_rule
from ntkdiag.measuring.linearized_change import resolved_error
from ntkdiag.measuring.measured import Measured
from ntkdiag.measuring.probed_function import ProbedFunction

# Eigenvectors of each kernel that are compared. Kernels are centred over examples: the largest
# modes of a kernel as it comes are the constants of the outputs, which any two networks share.
N_MODES = 10
Modes = Float[np.ndarray, "rows k"]
# Ways of one call of the program, and bytes that their parameters and outputs may take.
MOST_WAYS = 32
BYTES_OF_WAYS = 256 * 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """One checkpoint of a run: where it is, and what was measured there, as it is stored."""

    step: int  # its step
    params: PyTree  # theta
    kwargs: Mapping[str, PyTree]  # what else the function takes: s
    row: Mapping[str, Any]  # numbers by name, as JSON has them
    kernel: Kernel  # the kernel on the probe
    eigenvalues: Float[np.ndarray, " k"]  # `[k]` of the kernel, descending
    # `[k m]` leading eigenvectors of the centred kernel, in columns; zeros where there is none that
    # is resolved.
    modes: Float[np.ndarray, "k m"]
    outputs: Float[np.ndarray, "n *o"]  # `[n *o]` outputs on the probe

    @staticmethod
    def of(
        step: int,
        params: PyTree,
        kwargs: Mapping[str, PyTree],
        measured: Measured,
        outputs_of_one: tuple[int, ...],
    ) -> "Place":
        """A checkpoint that was measured."""
        kernel = measured.kernel
        # NaN for infinity, which JSON does not have either.
        numbers = {
            name: math.nan if math.isinf(value) else value
            for name, value in measured.numbers.items()
        }
        row = {
            **numbers,
            **{name: array.tolist() for name, array in measured.arrays.items()},
            "params_sha256": measured.params_sha256,
            "spectrum_status": measured.spectrum.status,
            "convention": kernel.convention.to_dict(),
        }
        if "update_norm" in numbers:
            row["margin_status"] = measured.margin_status
        return Place(
            step,
            params,
            kwargs,
            row,
            kernel=dataclasses.replace(kernel, array=np.asarray(kernel.array), leaves=None),
            eigenvalues=np.asarray(measured.spectrum.eigenvalues),
            modes=leading_modes(kernel.array, float(measured.spectrum.noise_floor)),
            outputs=measured.outputs.reshape(-1, *outputs_of_one),
        )

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, as they are stored."""
        return {
            "kernel": np.asarray(self.kernel.array),
            "eigenvalues": self.eigenvalues,
            "modes": self.modes,
            "outputs": self.outputs,
        }

    @functools.cached_property
    def unit_kernels(self) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
        """The kernel and the centred one at unit length."""
        unit, unit_centred = unit_kernels(self.kernel.array)
        return np.asarray(unit), np.asarray(unit_centred)


class DirectedPair(NamedTuple):
    """From the checkpoint where the network is linearized to the one that it predicts."""

    start: Place
    end: Place


class Pairs:
    """Measures pairs of checkpoints of one run."""

    def __init__(self, model: ProbedFunction):
        self.model = model
        targets = None if model.labels is None else model.labels.targets
        shape = (model.settings.n_examples, *model.outputs_of_one)
        self.rule: Rule = decision_rule(shape, targets, model.settings.loss)

    def between(self, before: Sequence[Place], now: Place) -> dict[str, list[float]]:
        """All numbers of a checkpoint beside each one before it."""
        numbers: dict[str, list[float]] = {"distance": [], "distance_centred": [], "overlap": []}
        unit, unit_centred = now.unit_kernels
        for earlier in before:
            before_unit, before_centred = earlier.unit_kernels
            numbers["distance"].append(_distance(before_unit, unit))
            numbers["distance_centred"].append(_distance(before_centred, unit_centred))
            numbers["overlap"].append(overlap_of_modes(earlier.modes, now.modes))
        ways_to = [DirectedPair(earlier, now) for earlier in before]
        ways_from = [DirectedPair(now, earlier) for earlier in before]
        linearized = self._linearized(ways_to + ways_from)
        for name, values in linearized.items():
            numbers[f"{name}_to"] = values[: len(before)]
            numbers[f"{name}_from"] = values[len(before) :]
        return numbers

    def _linearized(self, ways: Sequence[DirectedPair]) -> dict[str, list[float]]:
        """e1 of each way, and the decisions that agree; NaN where unresolved."""
        errors_of_ways = []
        agreements = []
        for way, (begun, predicted) in zip(ways, self._predictions(ways), strict=True):
            reached = way.end.outputs
            error = float(np.linalg.norm(predicted - reached))
            change = float(np.linalg.norm(reached - begun))
            rounding = self.model.roundoff * float(np.linalg.norm(reached))
            errors_of_ways.append(nan_if_unknown(resolved_error(error, change, rounding)))
            agreements.append(nan_if_unknown(agreement(predicted, reached, self.rule)))
        return {"e1": errors_of_ways, "agreement": agreements}

    def _predictions(
        self, ways: Sequence[DirectedPair]
    ) -> Iterator[tuple[Float[np.ndarray, "n *o"], Float[np.ndarray, "n *o"]]]:
        """f_start and f_lin of each way, in float64; those of one call are held at a time."""
        if not ways:
            return
        together = _ways_together(ways[0])
        for first in range(0, len(ways), together):
            some = list(ways[first : first + together])
            count = len(some)
            # The program is of one shape: what is missing is filled up, and not computed.
            some += [some[0]] * (together - count)
            begun, predicted = self._predict(
                _stacked([way.start.params for way in some]),
                _stacked([way.end.params for way in some]),
                _stacked([way.end.kwargs for way in some]),
                self.model.x,
                count,
            )
            begun, predicted = np.asarray(begun), np.asarray(predicted)
            for number in range(count):
                yield begun[number].astype(np.float64), predicted[number].astype(np.float64)

    @functools.cached_property
    def _predict(self) -> Callable[..., tuple[Array, Array]]:
        f = self.model.f
        shape = (self.model.settings.n_examples, *self.model.outputs_of_one)

        def predict(
            starts: PyTree, ends: PyTree, held: PyTree, x: PyTree, count: Int[Array, ""]
        ) -> tuple[Float[Array, "w n *o"], Float[Array, "w n *o"]]:
            def one(number: Int[Array, ""]) -> tuple[Float[Array, "n *o"], Float[Array, "n *o"]]:
                start, end, kwargs = jax.tree.map(lambda leaf: leaf[number], (starts, ends, held))
                way = jax.tree.map(jnp.subtract, end, start)  # theta_j - theta_i
                outputs, change = jax.jvp(lambda params: f(params, x, **kwargs), (start,), (way,))
                return outputs, outputs + change

            def with_one_more(number: Int[Array, ""], found: tuple[Array, Array]) -> tuple:
                own = one(number)
                return jax.tree.map(lambda all_ways, way: all_ways.at[number].set(way), found, own)

            n_ways = len(jax.tree.leaves(starts)[0])
            dtype = jax.eval_shape(one, count)[0].dtype
            nothing = jnp.zeros((n_ways, *shape), dtype)
            return jax.lax.fori_loop(0, count, with_one_more, (nothing, nothing))

        full = in_full_precision(predict)
        return jax.jit(full, compiler_options=compiler_options(reduces=True))


def _ways_together(way: DirectedPair) -> int:
    """How many ways one call goes, within the memory for them."""
    end = way.end
    leaves = jax.tree.leaves((way.start.params, end.params, end.kwargs, end.outputs))
    bytes_of_one = sum(leaf.nbytes for leaf in leaves)
    return max(1, min(MOST_WAYS, BYTES_OF_WAYS // max(1, bytes_of_one)))


def _stacked(trees: Sequence[PyTree]) -> PyTree:
    """Trees of one structure as one, with a first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _distance(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."]) -> float:
    """S of two kernels at unit length."""
    return 0.5 * float(np.sum((a - b) ** 2, dtype=np.float64))


def leading_modes(kernel: Float[Array | np.ndarray, "..."], noise_floor: float) -> Modes:
    """The leading eigenvectors of a centred kernel, in columns; zeros for what is not resolved."""
    import scipy.linalg  # here, because it is slow to import

    with jax.enable_x64(True):
        centred = np.asarray(centre_kernel(np.asarray(kernel, np.float64)))
    rows = math.prod(centred.shape[: centred.ndim // 2])
    matrix = centred.reshape(rows, rows)
    if not np.isfinite(matrix).all():
        return np.zeros((rows, min(rows, N_MODES)))
    first = max(0, rows - N_MODES)
    values, vectors = scipy.linalg.eigh(matrix, subset_by_index=(first, rows - 1))
    return np.where(values > noise_floor, vectors, 0.0)[:, ::-1]


def overlap_of_modes(modes_a: Modes, modes_b: Modes) -> float:
    """||U_a^T U_b||_F^2 / m of the m leading modes that both resolve; NaN without modes."""
    # A mode below the noise floor has no direction.
    m = min(int(modes.any(axis=0).sum()) for modes in (modes_a, modes_b))
    if m == 0:
        return math.nan
    return float(np.sum((modes_a[:, :m].T @ modes_b[:, :m]) ** 2)) / m
