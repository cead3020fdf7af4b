"""What the process keeps beside its pictures: plans of the CPU library, freed blocks of the C library."""

from __future__ import annotations

import ctypes
import os
import sys

#: Two caches of the CPU library hold a compiled plan for each layer and size, by default 1024 each, and pictures come
#: in any size: that is 100 MiB and more that nobody needs. A picture of 512 px has about 150 plans.
_PLANS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256", "LRU_CACHE_CAPACITY": "256"}
#: A heap of its own for every thread would keep what each thread once needed.
_ARENAS = 2
_M_ARENA_MAX = -8  # malloc.h
#: Time between two returns of what is free. It takes milliseconds, and as long again to fault it in when it is needed.
TRIM_EVERY_S = 20.0


def bound_memory() -> None:
    """Bounds both; to be called before there are threads and before torch computes anything.

    The process's environment goes first: what it sets already is left alone.
    """
    for name, plans in _PLANS.items():
        os.environ.setdefault(name, plans)
    if "MALLOC_ARENA_MAX" not in os.environ:
        _glibc("mallopt", _M_ARENA_MAX, _ARENAS)


def give_back_free_memory() -> None:
    """Gives free pages back to the system.

    Pictures of many sizes leave holes between blocks that stay; of its own the C library gives back no more than what
    is free at the end of a heap.
    """
    _glibc("malloc_trim", 0)


def _glibc(name: str, *arguments: int) -> None:
    """Calls one of glibc's own functions, without the interpreter's lock; does nothing with another C library."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
    if function is not None:
        function(*arguments)
