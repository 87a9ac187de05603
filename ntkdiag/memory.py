"""Memory budgets: how much there is, and how a budget is written.

What is free is the least of what is left anywhere: on the device of an accelerator, on the host,
and in each of the control groups of Linux (version 2) that a container or a batch job is in.
"""

import contextlib
import math
import re
from collections.abc import Callable
from pathlib import Path

import jax

from ntkdiag import errors

# A number of bytes with a unit: "512 MiB", 2e9, "1GB".
_SIZE = re.compile(r"\s*([0-9.]+(?:e\+?[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
# Where the memory of the host cannot be read: a small machine.
_ASSUMED = 4 * 10**9
# Bytes that are there without asking.
SMALL = 2**26


def budget(memory: int | float | str | None) -> int:
    """Bytes of a budget such as ``2e9`` or ``"512 MiB"``; None is half of what is free."""
    if memory is None:
        return free_memory() // 2
    match = _SIZE.fullmatch(str(memory))
    size = 0.0
    if match is not None:
        number, prefix, binary = match.groups()
        base = 1024 if binary else 1000
        with contextlib.suppress(ValueError):  # 1.2.3
            size = float(number) * base ** _POWERS[prefix.upper()]
    if not 0 < size < math.inf:
        raise errors.InvalidInputError(
            argument=f"memory={memory!r}",
            expected='a positive number of bytes, such as 2e9, "2GB" or "512MiB"',
            got=repr(memory),
            do="Leave it out to use half of the free memory.",
        )
    return int(size)


def budget_for(needed: int) -> int:
    """Bytes for work that needs so many: half of what is free, which is looked up only for much."""
    return SMALL if needed <= SMALL else budget(None)


def readable(size: int | float) -> str:
    """Bytes for a person."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def require_free(
    needed: int | float, what: str, free: Callable[[], int], do: str | Callable[[], str]
) -> None:
    """Refuse work that needs more bytes than are `free()`, which is looked up only for much."""
    if needed <= SMALL:
        return
    available = free()
    if needed > available:
        raise errors.MemoryBudgetError(
            expected=f"{readable(needed)} for {what}",
            got=f"{readable(available)} free",
            do=do if isinstance(do, str) else do(),
        )


def free_memory() -> int:
    """Bytes free on the default device; on CPU, what the host and its control group leave."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return host_memory()


def host_memory() -> int:
    """Bytes that the host leaves, and the control groups that this process is in."""
    free = [_available()]
    for folder in _control_groups():
        with contextlib.suppress(OSError, ValueError):  # no limit, or no such group
            limit = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            # The page cache is given back when it is needed.
            cached = _field(folder / "memory.stat", "inactive_file")
            free.append(limit - used + cached)
    return max(1, min(free))


def _control_groups() -> set[Path]:
    """The folders of the control groups of this process, from its own to the root."""
    root = Path("/sys/fs/cgroup")
    folders = {root}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":  # version 2; a limit of any group above holds here too
                inner = Path(path.lstrip("/"))
                folders.update(root / part for part in (inner, *inner.parents))
    return folders


def _available() -> int:
    """Bytes that the host can give without swapping."""
    try:
        kilobytes = _field(Path("/proc/meminfo"), "MemAvailable:")
    except (OSError, ValueError):  # not Linux
        return _ASSUMED
    return 1024 * kilobytes


def _field(path: Path, name: str) -> int:
    """The number behind a name, in a file of one per line."""
    for line in path.read_text().splitlines():
        words = line.split()
        if words[0] == name:
            return int(words[1])
    raise ValueError(name)
