"""From a measurement to every writer, without ever raising into the training loop or stopping it.

Each writer has a thread of its own while there is something to write (see `Courier`). Training
waits for the writers of a record for a second at most, so that what they wrote can be read at once
where they are as quick as a file or a list; one that has once taken longer is not waited for again
until it has caught up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag import errors
from ntkdiag.monitor.courier import CLOSING_SECONDS, PATIENCE, Courier, wait, wait_at_the_end
from ntkdiag.monitor.schedule import Step
from ntkdiag.monitor.writers import Values, Writer


class Outbox:
    """Hands measurements to writers.

    Args:
        writers: The writers, or one of them.

    Raises:
        InvalidInputError: When something in `writers` has no `write` method.
    """

    def __init__(self, writers: Writer | Sequence[Writer]) -> None:
        self.writers = _checked(writers)
        call = errors.current_call()
        self._couriers = [Courier(writer, call) for writer in self.writers]

    def send(self, step: Step, values: Values, record: Mapping[str, Any]) -> None:
        """Have one measurement written everywhere, after the convention record of its writer."""
        # All couriers set off before the first is waited for.
        posted = []
        for courier in self._couriers:
            receipt = courier.post_record(int(step), values, record)
            if receipt is not None:
                posted.append((courier, receipt))
        for courier in wait(posted, PATIENCE):
            courier.is_late = True

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        """Close the writers after all that was sent, and wait so many seconds for it at most."""
        posted = [(courier, courier.post_close()) for courier in self._couriers]
        wait_at_the_end(posted, seconds)


def _checked(writers: Writer | Sequence[Writer]) -> tuple[Writer, ...]:
    """The writers as a tuple; refused when one of them cannot write."""
    listed = tuple(writers) if isinstance(writers, Sequence) else (writers,)
    for writer in listed:
        # A class has the method, too, and is no writer: it has to be called first.
        is_class = isinstance(writer, type)
        if callable(getattr(writer, "write", None)) and not is_class:
            continue
        raise errors.InvalidInputError(
            argument="writers=...",
            expected="objects with a method write(step, values)",
            got=f"the class {writer.__name__}" if is_class else f"a {type(writer).__name__}",
            do="ntkdiag.monitor has JsonLines(path), Terminal() and InMemory().",
        )
    return listed
