"""Loads libraries that a wheel brings for systems that do not have them.

They load the drivers of RDMA devices, whose versions are those of the system, so the system's own
are taken where there are any.
"""

from __future__ import annotations

import ctypes
import pathlib

_brought = pathlib.Path(__file__).parent.parent / "millrace.libs" / "last"

for _name in ("libibverbs.so.1", "librdmacm.so.1"):
    if (_brought / _name).exists():
        try:
            ctypes.CDLL(_name)
        except OSError:
            ctypes.CDLL(str(_brought / _name))
