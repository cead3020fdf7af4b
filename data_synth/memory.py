"""Keeping the C library from giving memory back that the next operation asks for again."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_BYTES = 1 << 30


def keep_freed_memory() -> bool:
    """Makes glibc reuse freed memory up to a GiB rather than return it to the system.

    Tensors of a few MiB are otherwise mapped, zeroed page by page and unmapped again by every operation, which
    takes about half of the time of a degradation on the CPU. Affects the whole process, hence only called by
    programs, never on import.

    Returns:
        Whether it took effect; False where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, _BYTES) & mallopt(_M_TRIM_THRESHOLD, _BYTES))
