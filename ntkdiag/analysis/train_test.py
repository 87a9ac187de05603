"""Whether the examples of a kernel were trained on, and what that makes of its numbers.

Training turns a kernel towards the labels it sees. On those very examples it then looks better than
on any others: leave-one-out, whose refits know nothing of this, may read half of the true error or
far less, and the alignment is too high. Of networks of two layers that learned features, on 60 to
400 examples, 0.02 to 0.5 of the true error was measured; of lazy ones 0.9. No number of the kernel
tells, so whoever calls does.
"""

from typing import TypeAlias

import numpy as np

from ntkdiag import errors
from ntkdiag.kernel.convention import Convention

# Whether they were, None if that is not known; or the hash of those that were trained on, as it
# stands in `kernel.convention.probe`.
TrainedOn: TypeAlias = bool | str | None

LEAVE_ONE_OUT = {
    True: "of examples that were trained on, whose labels the kernel knows: this may be half of "
    "the true error, or far less; take held-out examples",
    False: "of examples that were not trained on",
    None: "if these examples were trained on, this may be half of the true error, or far less: say "
    "trained_on=",
}
ALIGNMENT = {
    True: "of examples that were trained on: too high, as the kernel knows their labels",
    False: "of examples that were not trained on",
    None: "if these examples were trained on, too high: say trained_on=",
}


def read_trained_on(trained_on: TrainedOn, convention: Convention | None) -> bool | None:
    """Whether the examples of a kernel were trained on; None where that is not known."""
    if trained_on is None or isinstance(trained_on, bool | np.bool_):
        return None if trained_on is None else bool(trained_on)
    if not isinstance(trained_on, str):
        raise errors.InvalidInputError(
            argument="trained_on=...",
            expected="True, False, or the hash of the examples that were trained on",
            got=f"a {type(trained_on).__name__}",
            do="`kernel.convention.probe` is the hash of the examples of a kernel.",
        )
    # If the hash is another one, some of the examples may be the same all the same.
    probe = None if convention is None else convention.probe
    return True if trained_on == probe else None
