"""Temporary memory of a step on the CPU, which glibc would hand back to the system after each.

XLA allocates the temporary memory of a program anew at every call. A step under `watch` has that of
the measurement too, whether it measures or not. Blocks above 32 MB, and those of programs with a
callback, which run on another thread, go back to the system when they are freed; the page faults of
the next call then took as long as the step itself (8 MB of gradients: 2,000 faults, 3 ms).
Below these limits glibc keeps what was freed, and adapts the limits by itself.
"""

import ctypes
import functools
import os
import sys

import jax

# Parameters of `mallopt`, of glibc's malloc.h, and bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LIMITS = {_MMAP_THRESHOLD: 2**28, _TRIM_THRESHOLD: 2**29}
# Whoever has set any of these has chosen.
_CHOICES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@functools.cache
def keep_freed_memory() -> bool:
    """Have malloc keep freed blocks of up to 256 MB; whether it was asked to."""
    is_chosen = any(name in os.environ for name in _CHOICES)
    if is_chosen or sys.platform != "linux" or jax.default_backend() != "cpu":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # a libc that is not glibc
        return False
    return all(mallopt(name, value) == 1 for name, value in _LIMITS.items())
