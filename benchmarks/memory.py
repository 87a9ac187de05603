"""Peak memory of a call, from the kernel's own high-water mark (Linux)."""

import ctypes
import gc
from collections.abc import Callable


def peak(compute: Callable[[], object]) -> int | None:
    """Bytes of the peak resident set in one call, less those before it; None where no Linux is."""
    try:
        _release()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets VmHWM
        before = resident()
    except OSError:
        compute()
        return None
    compute()
    return _status("VmHWM") - before


def resident(pid: int | str = "self") -> int:
    """Resident bytes of a process."""
    return _status("VmRSS", pid)


def _release() -> None:
    """Give what was freed back to the system, or it would hide what the call needs."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return


def _status(field: str, pid: int | str = "self") -> int:
    with open(f"/proc/{pid}/status") as file:
        lines = [line for line in file if line.startswith(field + ":")]
    return int(lines[0].split()[1]) * 1024 if lines else 0
