"""Millrace for Lightning: a plug-in that keeps the checkpoints of a ``Trainer``."""

from __future__ import annotations

import copy
import importlib
import json
import logging
import os
import pathlib
import re
import types
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any

import torch

from . import torch as _torch
from ._client import Client, connect
from ._errors import InvalidArgument, NotFound
from ._future import Future
from ._repository import Receipt

__all__ = ["CheckpointIO"]

_log = logging.getLogger("millrace")

# `lightning` and `pytorch_lightning` have a class each, and ask for their own one.
_MODULES = ("lightning.pytorch.plugins.io", "pytorch_lightning.plugins.io")


def _base() -> Any:
    found: list[type] = []
    failed = []
    for name in (*_MODULES, "lightning_fabric.plugins"):
        if name == "lightning_fabric.plugins" and found:
            continue  # that of pytorch_lightning
        try:
            base = importlib.import_module(name).CheckpointIO
        except ImportError as e:
            failed.append(str(e))
            continue
        if base not in found:
            found.append(base)
    if not found:
        raise ImportError(
            "millrace.lightning needs Lightning: pip install lightning, or pytorch-lightning "
            f"({'; '.join(failed)})"
        )
    return types.new_class("CheckpointIO", tuple(found))


_Base = _base()

_SCHEME = "millrace"
# Files that another process loads at once: of launchers for their parents, and before Slurm starts
# a job anew.
_AT_ONCE = re.compile(r"\.temp\.ckpt$|hpc_ckpt_")


class CheckpointIO(_Base):  # type: ignore[misc, valid-type]
    """Keeps a trainer's checkpoints in a repository: ``Trainer(plugins=[CheckpointIO()])``.

    Args:
      client: where they are kept; ``None``: `millrace.connect()`, when they are first needed, in
        each process.
      group: of providers.
      prefix: of the names of models that stand for files, such as ``"run7/"``. Programs whose
        directories have the same names, as in containers, need one each.
      pickle: keeps what is no JSON, bytes or tensor, too, such as hyper-parameters of classes.
      trust: unpickles it when a checkpoint is loaded, which runs code of whoever has saved it.
      snapshot: copies the tensors, and stores the copies while the training goes on. The next
        save, load or removal, and the end of the trainer's call, wait for that, and raise what has
        failed. ``False``: a save is over when the checkpoint is stored.
      timeout: seconds for each request.

    ``millrace://GROUP/NAME`` is a model, and ``millrace:///NAME`` one of the group above. The path
    of a file is a model whose name is the prefix and the absolute path without its first slash.
    At the path a small file is written, which says which model it is: so Lightning finds the
    checkpoint, makes links to it, and continues from the last one.

    Strategies that read files themselves cannot load these checkpoints: FSDP, DeepSpeed and
    ``ModelParallelStrategy``.
    """

    def __init__(
        self,
        client: Client | None = None,
        group: str = "default",
        *,
        prefix: str = "",
        pickle: bool = False,
        trust: bool = False,
        snapshot: bool = False,
        timeout: float | None = None,
    ) -> None:
        super().__init__()
        self._given = client
        self._made: tuple[int, Client] | None = None
        self._group = group
        self._prefix = prefix
        self._pickle = pickle
        self._trust = trust
        self._snapshot = snapshot
        self._timeout = timeout
        self._pending: tuple[Future[Receipt], Callable[[], None]] | None = None
        self._removals: list[str | os.PathLike[str]] = []  # after the save under way

    # ---- The methods of Lightning ----

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | os.PathLike[str],
        storage_options: Any = None,
    ) -> None:
        """Stores a checkpoint. Its tensors are read where they are."""
        if storage_options is not None:
            raise TypeError("storage_options: millrace.lightning.CheckpointIO has none")
        self._wait()
        file = _file_of(path)
        group, model = self._place(path) if file is None else (self._group, self._name(file))
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_dir():
                raise InvalidArgument(f"{file}: it is a directory")
        later = self._snapshot and not (file is not None and _AT_ONCE.match(file.name))
        stored = _torch.save(
            _copied(checkpoint) if later else checkpoint,
            model,
            client=self._client(),
            group=group,
            pickle=self._pickle,
            timeout=self._timeout,
        )

        def done() -> None:
            if file is not None:
                _write_note(file, group, model)

        self._pending = stored, done
        if later:
            stored.add_done_callback(lambda future: _tell(model, future))
        else:
            self._wait()

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = None,
        weights_only: bool | None = None,
        *,
        state: Any = None,
    ) -> dict[str, Any]:
        """Loads a checkpoint into new tensors.

        Args:
          map_location: a device for all tensors; ``None``: the CPU.
          weights_only: ``True`` unpickles nothing, ``False`` what was pickled; ``None``: ``trust``
            says which.
          state: is not used; Lightning gives the checkpoint to its objects.
        """
        if callable(map_location) or isinstance(map_location, dict):
            raise InvalidArgument("map_location: a device for all tensors, no function or dict")
        self._wait()
        group, model = self._place(path)
        loaded = _torch.load(
            model,
            client=self._client(),
            group=group,
            map_location=map_location,
            trust=self._trust if weights_only is None else not weights_only,
            timeout=self._timeout,
        )
        if not isinstance(loaded, dict):
            raise InvalidArgument(f"{model}: it is no checkpoint of Lightning")
        return loaded

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a checkpoint, after the save under way: it may be the only one until then."""
        if self._pending is not None and not self._pending[0].done():
            self._removals.append(path)
            return
        self._wait()
        self._remove(path)

    def teardown(self) -> None:
        """Waits for the save under way. Raises its failure."""
        self._wait()

    @property
    def requires_state_on_load(self) -> bool:
        return False

    # ---- Places ----

    def _client(self) -> Client:
        if self._given is not None:
            return self._given
        # A child process has a client of its own.
        if self._made is None or self._made[0] != os.getpid():
            self._made = os.getpid(), connect(timeout=self._timeout)
        return self._made[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    # The group and the model of a path.
    def _place(self, path: str | os.PathLike[str]) -> tuple[str, str]:
        file = _file_of(path)
        if file is not None:
            file = pathlib.Path(os.path.realpath(file))
            return _read_note(file) or (self._group, self._name(file))
        group, slash, name = os.fspath(path).removeprefix(f"{_SCHEME}://").partition("/")
        if not slash or not name:
            raise InvalidArgument(
                f"{os.fspath(path)}: a model is {_SCHEME}://GROUP/NAME or {_SCHEME}:///NAME"
            )
        return group or self._group, name

    def _name(self, file: pathlib.Path) -> str:
        name = self._prefix + str(file).lstrip("/")
        if len(name.encode()) > 512:
            raise InvalidArgument(
                f"{file}: the name of a model has at most 512 bytes, and this one "
                f"{len(name.encode())}: give ModelCheckpoint a shorter dirpath"
            )
        return name

    def _remove(self, path: str | os.PathLike[str]) -> None:
        file = _file_of(path)
        if file is None:
            self._erase(*self._place(path))
            return
        if file.is_symlink():
            file.unlink()
            return
        place = _read_note(file)
        # The note of another file, which was copied or moved, leaves the model alone.
        if place is None or place == (self._group, self._name(file)):
            self._erase(self._group, self._name(file))
        file.unlink(missing_ok=True)

    def _erase(self, group: str, model: str) -> None:
        try:
            self._client().repository(group).erase(model).result(self._timeout)
        except NotFound:
            pass

    # Ends the save under way. After a failure the checkpoints before it stay.
    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        removals, self._removals = self._removals, []
        if pending is not None:
            stored, done = pending
            try:
                stored.result()
            except BaseException:
                if not stored.done():
                    stored.cancel()
                raise
            done()
        for path in removals:
            self._remove(path)


def _tell(model: str, future: Any) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        _log.error("%s: a save has failed: %s", model, error)


# The absolute path of a file, without links in its directories; None: the path is a model.
def _file_of(path: str | os.PathLike[str]) -> pathlib.Path | None:
    text = os.fspath(path)
    if text.startswith(f"{_SCHEME}://"):
        return None
    if text.startswith(f"{_SCHEME}:/"):
        raise InvalidArgument(f"{text}: a Path joins slashes; give {_SCHEME}:// as a str")
    scheme, mark, rest = text.partition("://")
    if mark and scheme == "file":
        text = urllib.parse.unquote(rest)
    elif mark and scheme.isalnum():
        raise InvalidArgument(f"{text}: a checkpoint is the path of a file, or {_SCHEME}://")
    text = os.path.abspath(os.path.expanduser(text))
    return pathlib.Path(os.path.realpath(os.path.dirname(text)), os.path.basename(text))


# ---- The file at the path of a checkpoint ----


def _write_note(file: pathlib.Path, group: str, model: str) -> None:
    path = file.with_name(f".{uuid.uuid4().hex}")
    try:
        path.write_text(json.dumps({_SCHEME: {"group": group, "model": model}}) + "\n")
        path.replace(file)
    finally:
        path.unlink(missing_ok=True)


def _read_note(file: pathlib.Path) -> tuple[str, str] | None:
    try:
        with file.open("rb") as f:
            text = f.read(8192)
    except FileNotFoundError:
        return None
    try:
        note = json.loads(text)[_SCHEME]
        return str(note["group"]), str(note["model"])
    except (ValueError, KeyError, TypeError):
        raise InvalidArgument(
            f"{file}: it is a file that was not written by millrace.lightning.CheckpointIO"
        ) from None


def _copied(x: Any) -> Any:
    """Returns the object with copies of its tensors. Those that are the same memory stay so."""
    seen: dict[Any, torch.Tensor] = {}

    def copied(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            key = x.data_ptr(), x.dtype, x.shape, x.stride(), x.device
            if key not in seen or not x.numel():
                seen[key] = x.detach().clone().requires_grad_(x.requires_grad)
            return seen[key]
        if isinstance(x, dict):
            # With the versions of modules that a state dictionary has.
            out = copy.copy(x)
            for key, value in x.items():
                out[key] = copied(value)
            return out
        if type(x) in (list, tuple):
            return type(x)(copied(v) for v in x)
        return x

    return copied(x)
