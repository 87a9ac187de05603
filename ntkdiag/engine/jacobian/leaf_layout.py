"""Where the elements of a view lie in its parameter leaf.

While the walk follows a parameter through reshapes, transposes, slices and broadcasts, it has to
know which elements of the leaf each view holds. That is an offset and a stride for each axis, and
numpy already has the arithmetic: a `LeafLayout` applies every operation to a stand-in array with
one byte per element of the leaf. Its memory is reserved but never read or written, so even a leaf
of a billion elements costs nothing.
"""

import dataclasses
from typing import Any, SupportsIndex

import numpy as np

# How long numpy may try to tell whether two layouts overlap.
# Any, because numpy declares 0 and -1 only.
_MOST_WORK: Any = 100_000


@dataclasses.dataclass(frozen=True, eq=False)
class LeafLayout:
    """The map from the elements of a view to the elements of a leaf, as offset and strides."""

    array: np.ndarray  # the stand-in for the leaf, seen like the view
    base: int  # address of the first element of the leaf
    size: int  # number of elements of the leaf
    n_block: int = 0  # how many scans run over axes of this leaf

    @staticmethod
    def of(shape: tuple[int, ...], n_block: int = 0) -> "LeafLayout":
        """The layout of a leaf as a view of itself."""
        array = np.empty(shape, np.int8)
        return LeafLayout(array, _address(array), array.size, n_block)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the view as the program sees it."""
        return self.array.shape[self.n_block :]

    @property
    def strides(self) -> tuple[int, ...]:
        """How far apart neighbours along each axis are in the leaf; 0 along repeated axes."""
        return self.array.strides[self.n_block :]

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Lengths of the enclosing scans that run over this leaf, outermost first."""
        return self.array.shape[: self.n_block]

    @property
    def offset(self) -> int:
        """Index of the first element in the flattened leaf."""
        return _address(self.array) - self.base

    @property
    def is_whole_leaf(self) -> bool:
        """Whether this is every element of the leaf, in the order of the leaf."""
        return self.array.size == self.size and self.array.flags.c_contiguous

    @property
    def repeats(self) -> bool:
        """Whether an element of the leaf appears more than once: such a view is no isometry."""
        axes = zip(self.array.strides, self.array.shape, strict=True)
        return any(stride == 0 and size > 1 for stride, size in axes)

    def reshape(self, shape: tuple[int, ...]) -> "LeafLayout | None":
        """Reshape; None where no strides describe the result."""
        # With copy=False numpy raises where it would have to copy: where no strides will do.
        try:
            array = self.array.reshape(self.block_shape + tuple(shape), copy=False)
            return dataclasses.replace(self, array=array)
        except ValueError:
            return None

    def transpose(self, permutation: tuple[int, ...]) -> "LeafLayout":
        """Permute the axes."""
        blocks = range(self.n_block)
        visible = (self.n_block + axis for axis in permutation)
        return dataclasses.replace(self, array=self.array.transpose((*blocks, *visible)))

    def select(self, index: tuple[slice | None, ...]) -> "LeafLayout":
        """Basic slicing."""
        all_blocks = (slice(None),) * self.n_block
        return dataclasses.replace(self, array=self.array[all_blocks + index])

    def broadcast(
        self, shape: tuple[int, ...], dimensions: tuple[SupportsIndex, ...]
    ) -> "LeafLayout":
        """What `lax.broadcast_in_dim` gives; repeated axes get stride 0."""
        # Insert axes of length 1 where the view has none, then stretch those to the shape.
        index = tuple(slice(None) if axis in dimensions else None for axis in range(len(shape)))
        array = self.select(index).array
        array = np.broadcast_to(array, self.block_shape + tuple(shape))
        return dataclasses.replace(self, array=array)

    def enter_scan(self) -> "LeafLayout":
        """The layout inside a scan over the leading axis, which becomes a block axis."""
        return dataclasses.replace(self, n_block=self.n_block + 1)

    def overlaps(self, layout: "LeafLayout") -> bool:
        """Whether two layouts share an element of the leaf; True where that is too hard to tell."""
        try:
            return np.shares_memory(self.array, layout.array, max_work=_MOST_WORK)
        except np.exceptions.TooHardError:
            return True

    def indices(self) -> np.ndarray:
        """The index into the flattened leaf of every element of the view; this does cost memory."""
        # The index at position (k_1, k_2, ...) is offset + sum_j k_j stride_j.
        rank = self.array.ndim
        index = np.full((1,) * rank, self.offset)
        axes = zip(self.array.shape, self.array.strides, strict=True)
        for axis, (size, stride) in enumerate(axes):
            along_axis = [1] * rank
            along_axis[axis] = size
            index = index + (np.arange(size) * stride).reshape(along_axis)
        return index


def _address(array: np.ndarray) -> int:
    """Where the first element of an array lies in memory, in bytes: one byte is one element."""
    return array.__array_interface__["data"][0]
