"""Giving back what was freed: allocators keep it for the threads that freed it, and limits count it.

What streams needs the same little memory again and again; kept thread by thread it adds up to hundreds
of megabytes. Where a platform has none of these switches, nothing happens. Arrow's is in `include`.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_M_ARENA_MAX = -8


@cache
def one_arena() -> None:
    """Let all threads that begin from now on allocate in one place, as LanceDB's do."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Return what is free by now to the system. Milliseconds; for after a piece of bulk work."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None
