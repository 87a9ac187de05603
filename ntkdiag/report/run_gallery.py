"""Examples that stand out: those to look at first, the most influential ones, the hardest to fit.

Mislabelled and odd examples are learned from themselves alone: the squared gradients of their own
losses, summed over the run, are the largest.

Of example i, K_ii is its influence on itself. How hard it is, its kernel says by modes: the part of
its centred labels that the m fastest modes leave over,

    h_i = ||(Y - U_m U_m^T Y)_i||^2 / mean_j ||Y_j||^2.

These two are of the last checkpoint.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ntkdiag.report.number_text import number
from ntkdiag.report.run_subject import RunSubject
from ntkdiag.report.thumbnails import data_address

MOST_EXAMPLES = 12
MOST_LOOKED_AT = 20
MOST_MODES = 10


@dataclasses.dataclass(frozen=True)
class ShownExample:
    """One example of a gallery.

    Attributes:
        name: Its number, and its label.
        value: What it stands out by.
        image: Address of its thumbnail, which holds the picture itself; empty without.
    """

    name: str
    value: str
    image: str


@dataclasses.dataclass(frozen=True)
class Gallery:
    """Some examples in the order of a number.

    Attributes:
        title: What they have in common.
        caption: What the number is.
        examples: The examples.
    """

    title: str
    caption: str
    examples: Sequence[ShownExample]


def galleries(subject: RunSubject) -> list[Gallery]:
    """The galleries that there are numbers for."""
    return [*_to_look_at(subject), *_of_kernels(subject)]


def _to_look_at(subject: RunSubject) -> list[Gallery]:
    """The largest self-influences of the run, where the gradient kernel was measured."""
    if subject.series("self_influence") is None:
        return []
    assert subject.track is not None
    influence = subject.track.self_influence()
    total = float(influence.sum())
    if not np.isfinite(influence).all() or total == 0.0:
        return []
    caption = (
        "Self-influence: squared gradients of the loss of each example, summed over the "
        f"{len(subject.steps)} checkpoints, over their mean. Mislabelled and hard examples have "
        "most; of large inputs it is large, too."
    )
    relative = influence / (total / len(influence))
    shown = _first(subject, relative, MOST_LOOKED_AT)
    title = "Look at these twenty first" if len(shown) == MOST_LOOKED_AT else "Look at these first"
    return [Gallery(title, caption, shown)]


def _of_kernels(subject: RunSubject) -> list[Gallery]:
    """What the last stored kernel says about examples."""
    if not subject.kernels:
        return []
    kernel = subject.kernels[-1]
    step = subject.steps[-1]
    influence = np.diagonal(kernel).astype(np.float64)
    shown = [
        Gallery(
            "Largest in the kernel",
            f"K_ii at step {step}, over the median of the examples: a step on such an example "
            "moves its own outputs most.",
            _first(subject, influence / np.median(influence)),
        )
    ]
    if subject.targets is not None:
        n_modes = min(MOST_MODES, len(kernel) - 1)
        shown.append(
            Gallery(
                "Hardest by mode",
                f"What the {n_modes} fastest modes at step {step} leave over of the labels of an "
                "example, 1 is as much as labels are large: these are learned late, if at all.",
                _first(subject, left_over(kernel, subject.targets, n_modes)),
            )
        )
    return shown


def left_over(
    kernel: Float[np.ndarray, "n n"], targets: Float[np.ndarray, "n o"], n_modes: int
) -> Float[np.ndarray, " n"]:
    """What the fastest modes of the centred kernel leave over of centred labels, by example."""
    centred = np.asarray(kernel, np.float64)
    centred = centred - centred.mean(axis=0, keepdims=True)
    centred = centred - centred.mean(axis=1, keepdims=True)
    _, vectors = np.linalg.eigh(centred)
    fastest = vectors[:, ::-1][:, :n_modes]
    rest = targets - fastest @ (fastest.T @ targets)
    return np.sum(rest**2, axis=1) / np.mean(np.sum(targets**2, axis=1))


def _first(
    subject: RunSubject, values: Float[np.ndarray, " n"], count: int = MOST_EXAMPLES
) -> list[ShownExample]:
    """The examples of the largest values."""
    examples = []
    images = subject.thumbnails
    for place in np.argsort(-values, kind="stable")[:count].tolist():
        name = f"example {place}"
        if subject.labels:
            name += f", label {subject.labels[place]}"
        image = ""
        if images is not None and place < len(images):
            image = data_address(images[place])
        examples.append(ShownExample(name, number(float(values[place]), 3), image))
    return examples
