"""Examples of a call as a page names them: by number, with their label, and a picture of an image.

A result has numbers for examples and not the examples: these are handed in again where a page is
written, and only those that it shows are looked at.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ntkdiag import errors
from ntkdiag.losses import Weighted
from ntkdiag.report.number_text import number
from ntkdiag.report.run_gallery import ShownExample
from ntkdiag.report.thumbnails import data_address, thumbnails

_DIGITS = 3


@dataclasses.dataclass(frozen=True)
class NamedExamples:
    """Some examples, ready to be shown.

    Attributes:
        word: What an example is called.
        labels: Number -> label in words; none where labels are not one number each.
        images: Number -> address of a thumbnail; none where inputs are no images.
    """

    word: str
    labels: Mapping[int, str]
    images: Mapping[int, str]

    @staticmethod
    def of(word: str, pair: Any, chosen: Sequence[int]) -> "NamedExamples":
        """The examples of these numbers out of (x, y); of None numbers alone are known."""
        if pair is None:
            return NamedExamples(word, {}, {})
        x, y = pair
        if isinstance(y, Weighted):
            y = y.y
        numbers = sorted(set(chosen))
        labels = {}
        if np.ndim(y) == 1 and np.asarray(y).dtype.kind in "iuf":
            labels = {place: f"{np.asarray(y)[place]:g}" for place in numbers}
        images = {}
        pictures = thumbnails(jax.tree.map(lambda leaf: np.asarray(leaf)[numbers], x))
        if pictures is not None:
            addresses = [data_address(picture) for picture in pictures]
            images = dict(zip(numbers, addresses, strict=False))  # of very many the first are shown
        return NamedExamples(word, labels, images)

    def shown(self, place: int, value: float | None = None) -> ShownExample:
        """One example, with what it stands out by."""
        name = f"{self.word} {place}"
        if place in self.labels:
            name += f", label {self.labels[place]}"
        text = ""
        if value is not None:
            text = f"{'+' if value > 0 else ''}{number(value, _DIGITS)}"
        return ShownExample(name, text, self.images.get(place, ""))


def require_examples(pair: Any, argument: str, expected: str, fewest: int, most: int) -> None:
    """Refuse what is not (x, y) of so many examples; None is no examples.

    Args:
        pair: What was handed in.
        argument: Its name.
        expected: What it has to be, in words.
        fewest: How many examples it has at least.
        most: At most.

    Raises:
        InvalidInputError: It is no pair, or has other examples.
    """
    if pair is None:
        return
    got = f"a {type(pair).__name__}"
    if isinstance(pair, tuple | list) and len(pair) == 2:
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(pair[0])}
        if len(lengths) == 1 and fewest <= next(iter(lengths))[0] <= most:
            return
        shapes = ", ".join(str(np.shape(leaf)) for leaf in jax.tree.leaves(pair[0]))
        got = f"x of shape {shapes}"
    raise errors.InvalidInputError(
        argument=f"{argument}=...",
        expected=expected,
        got=got,
        do=f"Pass {argument}=(x, y) as it was in the call, or leave it out: examples are then "
        "named by their numbers.",
    )
