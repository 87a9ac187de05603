"""Memory budgets: how much there is, and how a budget is written."""

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path

import jax

from ntkdiag import errors

_DECIMAL = {f"{letter}{b}": 1000**k for k, letter in enumerate("KMGT", start=1) for b in ("", "B")}
_BINARY = {f"{letter}I{b}": 1024**k for k, letter in enumerate("KMGT", start=1) for b in ("", "B")}
_UNITS = {"": 1, "B": 1} | _DECIMAL | _BINARY


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
    if not match or unit is None or not 0 < value * unit < math.inf:
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
    for folder, limit, usage, cache in _control_groups():
        with contextlib.suppress(OSError, ValueError, StopIteration):  # no limit, or no such group
            used = int((folder / usage).read_text()) - _field(folder / "memory.stat", cache)
            free.append(int((folder / limit).read_text()) - used)
    return max(1, min(free))


def _control_groups() -> Iterator[tuple[Path, str, str, str]]:
    """The control groups of this process, from its own to the root: folder and names of limit, usage and page cache."""
    root, newer = Path("/sys/fs/cgroup"), ("memory.max", "memory.current", "inactive_file")
    older = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    yield root, *newer
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number != "0" and "memory" not in controllers.split(","):
                continue
            base, (limit, usage, cache) = (root, newer) if number == "0" else (root / "memory", older)
            inner = Path(path.lstrip("/"))
            for part in (inner, *inner.parents):
                yield base / part, limit, usage, cache


def _available() -> int:
    try:
        return 1024 * _field(Path("/proc/meminfo"), "MemAvailable:")
    except OSError:  # not Linux: assume a small machine
        return 4 * 10**9


def _field(path: Path, name: str) -> int:
    """The number behind a name, in a file of one per line."""
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[0] == name)
