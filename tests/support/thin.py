"""The fast suite takes one of several alike, the full one all."""

from collections.abc import Iterable
from typing import Any

import pytest


def thin(values: Iterable[Any], keep: int = 2) -> list[Any]:
    """Parameters of a test: the first of every `keep` is in the fast suite, the others are marked slow."""
    return [
        value if k % keep == 0 else pytest.param(value, marks=pytest.mark.slow)
        for k, value in enumerate(values)
    ]
