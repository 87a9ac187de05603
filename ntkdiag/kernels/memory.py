"""Memory budgets: how much there is, and how a budget is written."""

import contextlib
import re
from pathlib import Path

import jax

from ntkdiag import errors

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def budget(memory: int | float | str | None) -> int:
    """Bytes of a budget such as ``2e9``, ``"2GB"`` or ``"512 MiB"``; None is half of what is free.

    Raises:
        InvalidInputError: It cannot be read, or is not positive.
    """
    if memory is None:
        return free_memory() // 2
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE]\+?[0-9]+)?)\s*([A-Za-z]*)\s*", str(memory))
    unit = _UNITS.get(match[2].upper()) if match else None
    try:
        value = float(match[1]) if match and unit else 0.0
    except ValueError:
        value = 0.0
    if not match or unit is None or value <= 0:
        raise errors.InvalidInputError(
            errors.message(
                f"memory={memory!r}",
                expected='a positive number of bytes, such as 2e9, "2GB" or "512MiB"',
                got=repr(memory),
                do="Leave it out to use half of the free memory.",
            )
        )
    return int(value * unit)


def free_memory() -> int:
    """Bytes free on the default device: its own memory, or on CPU what the host and its control group leave."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    free = [_available()]
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no limit, or no control groups
        used = int((group / "memory.current").read_text()) - _field(group / "memory.stat", "inactive_file")
        free.append(int((group / "memory.max").read_text()) - used)
    return min(value for value in free if value)


def _available() -> int:
    try:
        return 1024 * _field(Path("/proc/meminfo"), "MemAvailable:")
    except OSError:  # not Linux: assume a small machine
        return 4 * 10**9


def _field(path: Path, name: str) -> int:
    """The number behind a name, in a file of one per line."""
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[0] == name)
