"""The exceptions of Millrace: one class for each code of the C interface."""

from __future__ import annotations

import concurrent.futures
import re

from . import _native


class Error(Exception):
    """A call or an operation has failed.

    ``code`` is the name of the code, such as ``"not_found"``; ``detail`` says what failed, with
    its key, device, peer or path, and the remedy where there is one. Most classes derive from the
    built-in exception of that meaning, too.
    """

    code = "internal"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    # `KeyError` would quote the text.
    def __str__(self) -> str:
        return self.detail


class InvalidArgument(Error, ValueError):
    """The call is wrong; repeating it will not help."""

    code = "invalid_argument"


class NotFound(Error, KeyError):
    code = "not_found"


class AlreadyExists(Error):
    code = "already_exists"


class PermissionDenied(Error, PermissionError):
    code = "permission_denied"


class Busy(Error):
    """A limit is reached, or something is not over yet; try again."""

    code = "busy"


class NoSpace(Error, OSError):
    """A provider, a pool, a buffer or this process has no room left."""

    code = "no_space"


class CorruptData(Error):
    code = "corrupt_data"


class UnsupportedVersion(Error):
    code = "unsupported_version"


class PeerLost(Error, ConnectionError):
    code = "peer_lost"


class DeadlineExceeded(Error, TimeoutError):
    """The deadline of an operation is over. A wait that ends first raises `TimeoutError`."""

    code = "deadline_exceeded"


class Cancelled(Error, concurrent.futures.CancelledError):
    code = "cancelled"


class Unavailable(Error, ConnectionError):
    """Shutting down, not reachable, or an object of the process that has forked this one."""

    code = "unavailable"


class IoError(Error, OSError):
    code = "io_error"


class ProtocolError(Error):
    code = "protocol_error"


class Unsupported(Error, NotImplementedError):
    code = "unsupported"


class Internal(Error, RuntimeError):
    """A defect in Millrace."""

    code = "internal"


_classes = {
    cls.code: cls
    for cls in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        Busy,
        NoSpace,
        CorruptData,
        UnsupportedVersion,
        PeerLost,
        DeadlineExceeded,
        Cancelled,
        Unavailable,
        IoError,
        ProtocolError,
        Unsupported,
        Internal,
    )
}


def _make(code: int, text: str) -> Error:
    name = _native.code_name(code)
    # Without the function of the C interface, which nobody here has called, and its structure.
    detail = re.sub(r"^millrace_\w+: (options->)?", "", text.removeprefix(f"{name}: "))
    return _classes.get(name, Internal)(detail)


_native.set_errors(_make)
