"""What a report is about.

A `ntkdiag.comparison.Comparison` prints and saves itself through this room, and so do others. To
import their types here would close a circle, so they go by names that say what they are.
"""

from typing import Any, TypeAlias

Comparison: TypeAlias = Any  # a ntkdiag.comparison.Comparison
Measured: TypeAlias = Any  # one of its two sides
Track: TypeAlias = Any  # a ntkdiag.comparison.Track
LeafMovement: TypeAlias = Any  # one entry of its `movement`
