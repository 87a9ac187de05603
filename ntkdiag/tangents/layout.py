"""Where the elements of a view lie in its parameter leaf: numpy strides over memory that is never touched."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """The map from the elements of a view to the elements of a leaf, as offset and strides.

    `array` is a one-byte-per-element stand-in for the leaf whose memory is reserved but never read or written: numpy's
    own view arithmetic (reshape, transpose, slicing, broadcasting) does all the work, at no cost in leaf size.
    `size` is the number of elements of the leaf.
    The first `n_block` axes are axes of the leaf that enclosing scans run over; operations do not see them.
    """

    array: np.ndarray
    base: int
    size: int
    n_block: int = 0

    @staticmethod
    def of(shape: tuple[int, ...], n_block: int = 0) -> "Layout":
        """The identity layout of a leaf."""
        array = np.empty(shape, np.int8)
        return Layout(array, array.__array_interface__["data"][0], array.size, n_block)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the view as the program sees it."""
        return self.array.shape[self.n_block :]

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Lengths of the enclosing scans that run over this leaf, outermost first."""
        return self.array.shape[: self.n_block]

    def _with(self, array: np.ndarray) -> "Layout":
        return dataclasses.replace(self, array=array)

    def reshape(self, shape: tuple[int, ...]) -> "Layout | None":
        """Reshape, or None where no strides describe the result."""
        try:
            return self._with(self.array.reshape(self.block_shape + tuple(shape), copy=False))
        except ValueError:
            return None

    def transpose(self, permutation: tuple[int, ...]) -> "Layout":
        """Permute the visible axes."""
        k = self.n_block
        return self._with(self.array.transpose((*range(k), *(k + p for p in permutation))))

    def slice(self, index: tuple[slice, ...]) -> "Layout":
        """Basic slicing of the visible axes."""
        return self._with(self.array[(slice(None),) * self.n_block + index])

    def broadcast(self, shape: tuple[int, ...], dimensions: tuple[int, ...]) -> "Layout":
        """`lax.broadcast_in_dim`: repeated axes get stride 0."""
        index = tuple(slice(None) if axis in dimensions else None for axis in range(len(shape)))
        array = self.array[(slice(None),) * self.n_block + index]
        return self._with(np.broadcast_to(array, self.block_shape + tuple(shape)))

    def enter_scan(self) -> "Layout":
        """Inside a scan over the leading visible axis: that axis becomes a block axis."""
        return dataclasses.replace(self, n_block=self.n_block + 1)

    @property
    def offset(self) -> int:
        """Index of the first element in the flattened leaf."""
        return self.array.__array_interface__["data"][0] - self.base

    @property
    def whole(self) -> bool:
        """Whether this is every element of the leaf in its own order."""
        return self.array.size == self.size and self.array.flags.c_contiguous

    @property
    def repeats(self) -> bool:
        """Whether an element of the leaf appears more than once: such a view is no isometry."""
        return any(s == 0 and n > 1 for s, n in zip(self.array.strides, self.array.shape, strict=True))

    def overlaps(self, other: "Layout") -> bool:
        """Whether two layouts share an element of the leaf; True when that is too hard to decide."""
        try:
            return np.shares_memory(self.array, other.array, max_work=100_000)  # pyright: ignore[reportArgumentType]
        except np.exceptions.TooHardError:
            return True

    def indices(self) -> np.ndarray:
        """Index into the flattened leaf of every element of the view (this one does cost memory)."""
        index = np.full((1,) * self.array.ndim, self.offset)
        for axis, (size, stride) in enumerate(zip(self.array.shape, self.array.strides, strict=True)):
            index = index + (np.arange(size) * stride).reshape([-1 if a == axis else 1 for a in range(self.array.ndim)])
        return index
