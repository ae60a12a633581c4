"""What is known of working sets: their fields, windows, damage, and how they are reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from . import _native
from ._repository import TensorInfo, infos


class SkippedFile(NamedTuple):
    """A file that a preload has left out."""

    path: str
    reason: str


class SetInfo(NamedTuple):
    """What a working set has."""

    name: str
    owner: str  #: who has preloaded it
    samples: int
    size_bytes: int  #: of all samples
    identity: int  #: orders depend on it
    preloaded_at_ns: int  #: wall clock
    existed: bool  #: a preload found that it was there already, and left it as it is
    while_used: bool  #: it goes with the last client that uses it
    fields: dict[str, TensorInfo]  #: with the shapes of one sample
    varying: tuple[str, ...]  #: fields whose samples differ in their first dimension, 0 in `fields`
    skipped: list[SkippedFile]  #: of a preload
    servers: int  #: data servers among which the samples are divided
    appends: int  #: whose samples it has, too
    window_bytes: int  #: so many bytes of samples are in memory at a time; all of them if it is 0
    left_out: tuple[str, ...]  #: paths that the preload has found damaged while it read samples


class WindowCounts(NamedTuple):
    """What a window has, and what has happened to its samples, each field of one counted."""

    size_bytes: int  #: of its memory
    kept_bytes: int  #: of the samples that it has
    kept: int  #: samples that readers can have
    given: int  #: that were there when a reader asked
    missing: int  #: that were not
    written: int
    refused: int  #: not kept, since all that were kept are needed earlier
    evicted: int  #: that made room
    damaged: int  #: whose bytes were not those that were written


class SetDamage(NamedTuple):
    """What a comparison of samples with their digests has found.

    A sample is damaged if one of its fields is.
    """

    samples: int  #: that were compared
    damaged: int  #: of them
    first: tuple[int, ...]  #: the numbers of those that were found first, at most 10


class PartAccess(NamedTuple):
    """How this process would reach the memory of a set, or of a part of one."""

    node: str
    by: str | None  #: ``"mapped"``, or the driver of its transfers; ``None``, it cannot be read now
    reason: str | None  #: why it cannot


class SetAccess(NamedTuple):
    """How this process would read a set."""

    parts: list[PartAccess]  #: one if the set is not divided, and then those of each append
    processors: str  #: as those of `Loader.processors`


class SetSummary(NamedTuple):
    """A working set, as a listing shows it."""

    name: str
    node: str  #: that keeps it
    owner: str
    samples: int
    fields: int
    size_bytes: int
    preloaded_at_ns: int  #: wall clock


SetLine = tuple[
    str, str | None, str, int, int, int, int, int, bool, bool, int, int, int, tuple[str, ...]
]


def varies(shape: Sequence[int]) -> bool:
    """Returns whether the samples of a field differ in their first dimension."""
    return len(shape) > 0 and shape[0] == 0


def set_info(
    line: SetLine, fields: dict[str, TensorInfo], skipped: Iterable[tuple[str, str]] = ()
) -> SetInfo:
    """Describes a set, as the native module does."""
    name, _, owner, samples, _, size, identity, at, existed, while_used = line[:10]
    servers, appends, window_bytes, left_out = line[10:]
    return SetInfo(
        name,
        owner,
        samples,
        size,
        identity,
        at,
        existed,
        while_used,
        fields,
        tuple(field for field, what in fields.items() if varies(what.shape)),
        [SkippedFile(*file) for file in skipped],
        servers,
        appends,
        window_bytes,
        left_out,
    )


def info_of(request: _native.Request) -> SetInfo:
    """Describes the set of a preload or of a description."""
    return set_info(request.set(), infos(request), request.skipped())


def access_of(request: _native.Request) -> SetAccess:
    """Returns how a set would be read."""
    return SetAccess(
        [PartAccess(*part) for part in request.access_parts()], request.processors() or ""
    )
