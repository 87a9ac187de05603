"""What other fixed arrays, such as running statistics, did between two sides, in words."""

from ntkdiag.report.causes import some_of
from ntkdiag.report.number_text import number, percent
from ntkdiag.report.reported import Comparison


def only_fixed_arrays_moved(comparison: Comparison) -> bool:
    """Whether the parameters are the same on both sides, and the fixed arrays are not."""
    if comparison.fixed_arrays is None:
        return False
    everything = comparison.movement[-1]  # the sum over all leaves
    return everything.moved == 0


def fixed_arrays_reading(comparison: Comparison) -> str:
    """What the fixed arrays did by themselves; nothing where they are the same."""
    change = comparison.fixed_arrays
    if change is None:
        return ""
    paths = some_of(change.paths)
    distance = number(float(change.drift.distance_centred), 3)
    if only_fixed_arrays_moved(comparison):
        return (
            f"Only fixed arrays moved, the parameters are the same: {paths}. The kernel differs by "
            f"a centred distance of {distance} by them, and no features were learned."
        )
    share = percent(change.share_of_fixed_arrays)
    return (
        f"Fixed arrays moved, too: {paths}. By themselves they changed the outputs by {share} of "
        f"the size of the whole change, and the kernel by a centred distance of {distance}. What "
        "the parameters did is told at those of B."
    )
