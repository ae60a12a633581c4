"""Working sets: training data in the memory of data servers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Union

from . import _native
from ._client import Client, milliseconds, native_of, pairs_of, text_of
from ._errors import Cancelled, InvalidArgument
from ._future import Future, Stage
from ._repository import Listing
from ._set_info import (
    SetAccess,
    SetInfo,
    SetLine,
    SetSummary,
    SkippedFile,
    WindowCounts,
    access_of,
    info_of,
)
from ._set_reader import SetReader
from ._tensors import checked, gpu

# How often the progress of a preload is looked at, in seconds.
_PROGRESS_EVERY = 0.1

_Paths = Union[str, os.PathLike[str], Iterable[Union[str, os.PathLike[str]]]]
# A dict: the paths of each field.
Files = Union[_Paths, Mapping[str, _Paths]]


def _summary(line: SetLine) -> SetSummary:
    name, node, owner, samples, fields, size_bytes, _, preloaded_at_ns, *_ = line
    return SetSummary(name, node or "", owner, samples, fields, size_bytes, preloaded_at_ns)


def list_sets(client: Client, prefix: str) -> Future[Listing]:
    """Lists working sets as `SetSummary`."""

    def read(request: _native.Request) -> Listing:
        out = Listing(_summary(line) for line in request.sets())
        out.silent = request.silent()
        return out

    return Future(Stage(native_of(client).list_sets(text_of("prefix", prefix)), read))


def _field_of(name: Any) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", text_of("files", name)):
        raise InvalidArgument(f"files: the field {name!r}; names have letters, digits, _, - and .")
    return str(name)


def _paths(files: Any) -> list[str]:
    if isinstance(files, Mapping):
        of_fields = [(_field_of(field), _paths(some)) for field, some in files.items()]
        paths = [f"{field}={path}" for field, some in of_fields for path in some]
    else:
        if isinstance(files, (str, os.PathLike)):
            files = [files]
        paths = [text_of("files", os.fspath(file)) for file in files]
    if not paths:
        raise InvalidArgument("files: there are none")
    return paths


def field_names(fields: Any) -> list[str]:
    """Returns the names that the caller wants; none for all."""
    if fields is None:
        return []
    if isinstance(fields, str):
        raise TypeError("fields: a list of names, not a str")
    names = [text_of("fields", name) for name in fields]
    if not names:
        raise InvalidArgument("fields: there are none")
    return names


def _servers(count: int) -> int:
    """Returns the number as C wants it: -1 for all."""
    if not 0 <= count < 2**31:
        raise InvalidArgument(f"servers: {count}; give a number, or 0 for all")
    return count or -1


class _Files(NamedTuple):
    """Files, and as what they are read, as the native module wants it."""

    paths: list[str]
    kind: str | None
    fields: list[str]
    labels: str | None
    on_error: str
    decode: list[str]
    image_pixels_max: int


def _files_of(
    files: Any,
    kind: str | None,
    fields: Sequence[str] | None,
    labels: str | os.PathLike[str] | None,
    on_error: str,
    decode: Mapping[str, str] | None,
    image_pixels_max: int | None,
) -> _Files:
    most = image_pixels_max
    return _Files(
        _paths(files),
        None if kind is None else text_of("kind", kind),
        field_names(fields),
        None if labels is None else text_of("labels", os.fspath(labels)),
        text_of("on_error", on_error),
        [f"{field}={form}" for field, form in pairs_of("decode", decode)],
        0 if most is None else checked("image_pixels_max", most, 1, 2**63 - 1),
    )


_NO_FILES = _Files([], None, [], None, "fail", [], 0)
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def _window(size: int | str | None) -> int:
    """Returns bytes; 0 for none."""
    if size is None:
        return 0
    if isinstance(size, str):
        found = re.fullmatch(r"(\d+) ?([KMGT]iB|)", size)
        if not found:
            raise InvalidArgument(f"window: {size!r}; give bytes, or a text such as '64MiB'")
        size = int(found[1]) * _UNITS[found[2]]
    return checked("window", size, 1, 2**63 - 1)


class WorkingSet:
    """A working set by its name; made by `Client.working_set`. It need not exist.

    Threads: any.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = text_of("name", name)
        self._files = _NO_FILES  # what this object has preloaded
        self._appended: list[_Files] = []  # and what it has appended then
        self.skipped: list[SkippedFile] = []  #: what the last `preload` or `append` has left out

    def preload(
        self,
        files: Files,
        *,
        kind: str | None = None,
        fields: Sequence[str] | None = None,
        labels: str | os.PathLike[str] | None = None,
        on_error: str = "fail",
        while_used: bool = False,
        decode: Mapping[str, str] | None = None,
        image_pixels_max: int | None = None,
        servers: int = 1,
        window: int | str | None = None,
        progress: Callable[[int, int], object] | None = None,
        timeout: float | None = None,
    ) -> WorkingSet:
        """Brings the samples of files into the memory of a data server, and waits for that.

        This process opens the files. A set of the same files that is there already is left as it
        is, but for parts that are missing. Ctrl-C gives the preload up, and leaves no set; its name
        and its memory are free a little later. `open` gives the same files to its reader.

        All ranks of a job may call it at once, and share the reading: each opens the files, and
        reads a part of them. If one fails or dies, others read its part. A program of another user,
        or with other files, waits for them, until it has heard of no new sample for 24 hours.

        Files are arrays (``.npy``, ``.npz``, ``.h5``, ``.hdf5``), whose first dimension counts the
        samples: ``x`` of ``.npy``, and a field for each array of the others. A dict gives files
        ``.npy`` as fields: ``{"image": "images.npy", "label": "labels.npy"}``. In tar archives
        (``.tar``, ``.tar.gz``, ``.tgz``, ``.tar.zst``) the files of one name are a sample, as
        WebDataset has it: a field for each extension, and ``key``. Of a directory, and of other
        files, each file is a sample: ``x`` is its bytes and ``path`` its name, and both vary
        in size.

        Args:
          files: a path or several, or a dict of fields with the paths of each, of which those at
            the same place have the same samples; names may have braces (``{000..012}``) and
            patterns (``*``).
          kind: ``"arrays"``: of a directory the files of arrays; ``"files"``: each file is a
            sample, whatever it is called; ``None``: by the names.
          fields: names of those to take, in this order; ``None``: all.
          labels: of files: ``"folders"``, by the first folder in the path, or a CSV file with lines
            ``path,label``; they become the field ``label``.
          on_error: of a file that is damaged or cannot be read: ``"fail"``, or ``"skip"``: it is
            left out, see `skipped`.
          while_used: the set goes by itself when every client that has preloaded it so, or has it
            open, is gone. Without it the set stays until it is unloaded.
          decode: fields whose samples are images in JPEG or PNG, and as what they are decoded:
            ``{"x": "rgb:224"}``, ``"gray:28x28"`` (height and width), or ``"rgb"`` where all images
            have one size. The field becomes u8 [height, width, channels].
          image_pixels_max: an image with more pixels is damaged; ``None``: 67,108,864.
          servers: among which the samples are divided, in equal parts; 0: all that there are.
          window: for a set that is larger than the memory of a data server: so many bytes of it, or
            ``"64MiB"``, keep samples. Readers take what is kept, and read the rest from the files;
            the preload reads none. Every process that reads the set calls `preload` first.
            ``None``: the memory has all samples.
          progress: called on this thread with the bytes that are loaded, by all programs that
            share the reading, and with all of them, 0 where that is not known yet. ``False`` gives
            the preload up; other programs go on.
          timeout: seconds for each request to the data server; the files take as long as they take.

        Returns: this working set.

        Raises: `NotFound`, `CorruptData`, `InvalidArgument` naming the file; `AlreadyExists` when
        other files were preloaded under the name; `Busy` after 24 hours without a new sample;
        `NoSpace`; `Cancelled`.
        """
        told = _native.progress() if progress is not None else None
        given = _files_of(files, kind, fields, labels, on_error, decode, image_pixels_max)
        request = self._begin(given, while_used, servers, window, timeout, told)
        self._await(request, told, progress)
        self._has_preloaded(given)
        return self

    def preloading(
        self,
        files: Files,
        *,
        kind: str | None = None,
        fields: Sequence[str] | None = None,
        labels: str | os.PathLike[str] | None = None,
        on_error: str = "fail",
        while_used: bool = False,
        decode: Mapping[str, str] | None = None,
        image_pixels_max: int | None = None,
        servers: int = 1,
        window: int | str | None = None,
        timeout: float | None = None,
    ) -> Future[SetInfo]:
        """Does what `preload` does, by a future, which describes the set."""
        given = _files_of(files, kind, fields, labels, on_error, decode, image_pixels_max)

        def preloaded(request: _native.Request) -> SetInfo:
            self._has_preloaded(given)
            return info_of(request)

        return Future(Stage(self._begin(given, while_used, servers, window, timeout, None), preloaded))

    def append(
        self,
        files: Files,
        *,
        kind: str | None = None,
        fields: Sequence[str] | None = None,
        labels: str | os.PathLike[str] | None = None,
        on_error: str = "fail",
        decode: Mapping[str, str] | None = None,
        image_pixels_max: int | None = None,
        progress: Callable[[int, int], object] | None = None,
        timeout: float | None = None,
    ) -> WorkingSet:
        """Appends the samples of more files to a set that was preloaded, and waits for that.

        They follow its samples, and the set is then as one that was preloaded from all files at
        once: it has the same order. Who opens the set sees all of them or none; readers that are
        open go on with what they have.

        If the set was preloaded from the same list of files, or they were appended together, it is
        left as it is, but for parts that are missing. So all ranks of a job may call it. Some files
        of such a list are appended again. While another program fills the set, this waits, as
        `preload` does. If Ctrl-C comes too late, the samples are there; another call finds them.

        The arguments are those of `preload`. The files must have the fields of the set. Labels come
        from a CSV file: the numbers of folders depend on all files of a set.

        Returns: this working set.

        Raises: those of `preload`; `NotFound` when there is no such set; `InvalidArgument` for
        other fields, for labels of folders, and for a set with a window; `PermissionDenied` naming the owner.
        """
        told = _native.progress() if progress is not None else None
        given = _files_of(files, kind, fields, labels, on_error, decode, image_pixels_max)
        self._await(self._begin_append(given, timeout, told), told, progress)
        self._has_appended(given)
        return self

    def appending(
        self,
        files: Files,
        *,
        kind: str | None = None,
        fields: Sequence[str] | None = None,
        labels: str | os.PathLike[str] | None = None,
        on_error: str = "fail",
        decode: Mapping[str, str] | None = None,
        image_pixels_max: int | None = None,
        timeout: float | None = None,
    ) -> Future[SetInfo]:
        """Does what `append` does, by a future, which describes the set."""
        given = _files_of(files, kind, fields, labels, on_error, decode, image_pixels_max)

        def appended(request: _native.Request) -> SetInfo:
            self._has_appended(given)
            return info_of(request)

        return Future(Stage(self._begin_append(given, timeout, None), appended))

    # Waits for samples that are brought to the set.
    def _await(
        self,
        request: _native.Request,
        told: _native.Progress | None,
        progress: Callable[[int, int], object] | None,
    ) -> None:
        try:
            while not request.wait(_PROGRESS_EVERY if told else None):
                if told and progress and progress(*told.value()) is False:
                    raise Cancelled(f"{self.name}: the call was given up")
        except BaseException:
            request.cancel()
            raise
        if (error := request.error()) is not None:
            raise error
        if told and progress:
            progress(*told.value())
        self.skipped = [SkippedFile(*file) for file in request.skipped()]

    def _has_preloaded(self, given: _Files) -> None:
        if given != self._files:
            self._files, self._appended = given, []

    def _has_appended(self, given: _Files) -> None:
        if given not in (self._files, *self._appended):
            self._appended.append(given)

    def _begin_append(
        self, given: _Files, timeout: float | None, told: _native.Progress | None
    ) -> _native.Request:
        return native_of(self._client).append_to_set(
            self.name,
            given.paths,
            milliseconds(timeout),
            given.kind,
            given.fields,
            given.labels,
            given.on_error,
            given.decode,
            given.image_pixels_max,
            told,
        )

    def _begin(
        self,
        given: _Files,
        while_used: bool,
        servers: int,
        window: int | str | None,
        timeout: float | None,
        told: _native.Progress | None,
    ) -> _native.Request:
        return native_of(self._client).preload(
            self.name,
            given.paths,
            milliseconds(timeout),
            given.kind,
            given.fields,
            given.labels,
            given.on_error,
            while_used,
            given.decode,
            given.image_pixels_max,
            _servers(servers),
            _window(window),
            told,
        )

    def describe(self) -> Future[SetInfo]:
        """Describes the set. Raises, by the future: `NotFound`."""
        return Future(Stage(native_of(self._client).describe_set(self.name), info_of))

    def window(self) -> WindowCounts:
        """Returns what the window of the set has, and how often it had what readers wanted.

        Raises: `NotFound`; `InvalidArgument` for a set that has all samples in memory.
        """
        return WindowCounts._make(native_of(self._client).describe_window(self.name))

    def access(self, device: Any = None) -> Future[SetAccess]:
        """Finds how this process would read the set: what it maps, and what comes by transfers.

        It opens the set for a moment, without files, which counts as a use.

        Args:
          device: that of the loader which would read it, as for `Loader`; ``None``: memory of the
            host.

        Raises: `InvalidArgument` for a device that cannot be used; by the future, `NotFound`. A
        part that cannot be read is no failure: `PartAccess.reason` says why.
        """
        found = gpu(device, "pt")
        request = native_of(self._client).describe_access(
            self.name, None if found is None else str(found)
        )
        return Future(Stage(request, access_of))

    def unload(self) -> Future[None]:
        """Hides the set at once. Its memory is free after the last reader.

        Raises, by the future: `NotFound`; `PermissionDenied` naming the owner.
        """
        self._files, self._appended = _NO_FILES, []
        return Future(Stage(native_of(self._client).unload(self.name), lambda request: None))

    def open(
        self,
        files: Files | bool = True,
        *,
        kind: str | None = None,
        fields: Sequence[str] | None = None,
        labels: str | os.PathLike[str] | None = None,
        on_error: str = "fail",
        decode: Mapping[str, str] | None = None,
        image_pixels_max: int | None = None,
    ) -> Future[SetReader]:
        """Opens the set.

        On the host of its data server its memory is mapped, and reading it costs no message. From
        other hosts it is read by transfers.

        When a data server is lost, the reader reads the samples of that server from the files that
        the set was preloaded from, until the server has them again, and counts them, see
        `SetReader.samples_from_files`. This process opens the files for the first such read, by
        the same names. They must be unchanged.

        Args:
          files: ``True``: those that `preload` and `append` of this object were given, and read as
            it says there; none if they were not called. They stand for the set if no other program
            has appended before. ``False``: none; reads of a lost server's samples fail.
            Otherwise as for `preload`, and so are the arguments after it; samples that were
            appended have no files then.

        Raises, by the future: `NotFound`.
        """
        appended: list[_Files] = []
        if files is True:
            given, appended = self._files, self._appended
        elif files is False:
            given = _NO_FILES
        else:
            given = _files_of(files, kind, fields, labels, on_error, decode, image_pixels_max)
        request = native_of(self._client).open_set(self.name, *given, appended)
        return Future(Stage(request, lambda r: SetReader(r.set_reader())))

    def __repr__(self) -> str:
        return f"<millrace.data.WorkingSet: {self.name}>"
