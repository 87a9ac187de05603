"""Which points of a long curve are drawn, and which curves of very many.

A drawing is some hundred pixels wide: more points than that are one above the other, and make a
page of many megabytes. Of a curve that is longer, stretches of equal length each keep

    their first and last point, their smallest and their largest value,

so that a spike of one step stays, and so do the ends. Of more curves than can be told apart those
stay that reach highest and lowest; of states of one thing, such as the spectra of all checkpoints,
those that lie evenly, with the first and the last.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int


def places_to_draw(
    columns: Sequence[Float[np.ndarray, " n"]], most: int
) -> Int[np.ndarray, " places"]:
    """The places of about `most` points of columns over one axis; all, where there are no more."""
    n = len(columns[0])
    if n <= most:
        return np.arange(n)
    n_kept_of_each = 2 + 2 * len(columns)
    n_stretches = max(1, most // n_kept_of_each)
    edges = np.linspace(0, n, n_stretches + 1).astype(int).tolist()
    kept = {edge for begin, end in itertools.pairwise(edges) for edge in (begin, end - 1)}
    for column in columns:
        is_known = np.isfinite(column)
        lowest = np.where(is_known, column, np.inf)
        highest = np.where(is_known, column, -np.inf)
        for begin, end in itertools.pairwise(edges):
            kept.add(begin + int(np.argmin(lowest[begin:end])))
            kept.add(begin + int(np.argmax(highest[begin:end])))
    return np.array(sorted(kept))


def even_places(count: int, most: int) -> Int[np.ndarray, " places"]:
    """At most so many places that lie evenly, with the first and the last one."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def curves_to_draw(
    values: Sequence[Float[np.ndarray, " _"]], most: int
) -> Int[np.ndarray, " curves"]:
    """The numbers of the curves that reach highest and lowest; all, where there are no more."""
    if len(values) <= most:
        return np.arange(len(values))
    highest = [np.max(y[np.isfinite(y)], initial=-np.inf) for y in values]
    lowest = [np.min(y[np.isfinite(y)], initial=np.inf) for y in values]
    from_above = np.argsort(-np.array(highest), kind="stable").tolist()
    from_below = np.argsort(np.array(lowest), kind="stable").tolist()
    # The highest, the lowest, the second highest, the second lowest, ... each once.
    in_turn = itertools.chain.from_iterable(zip(from_above, from_below, strict=True))
    return np.array(sorted(list(dict.fromkeys(in_turn))[:most]))
