"""Memory in huge pages, which a core reads faster: fewer addresses to translate."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable

from torch import Tensor


def ask_for_huge_pages(tensor: Tensor) -> bool:
    """Asks the system to back the memory of a new CPU tensor, not written yet, by huge pages.

    A hint that changes no value: whether it is taken depends on the system (on Linux, anything but
    "never" in /sys/kernel/mm/transparent_hugepage/enabled) and on free memory. Returns whether the
    system accepted it; False for other devices and systems, and for less than a whole page.
    """
    advise = _madvise()
    if advise is None or type(tensor) is not Tensor or tensor.device.type != "cpu":
        return False
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    return end > first and advise(first, end - first, mmap.MADV_HUGEPAGE) == 0


@functools.cache
def _madvise() -> Callable | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
