"""What objects have in common that belong to one process, and that are closed."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar, NoReturn, Self

from ._errors import Error


class OfProcess:
    """An object that no other process can have, so it is neither pickled nor copied."""

    _belongs: ClassVar[str]

    def __reduce__(self) -> NoReturn:
        raise TypeError(self._belongs)


class Scope:
    """A context manager that ends with its block."""

    def _leave(self, failed: bool) -> None:
        """Ends it. ``failed``: by an exception, which is what counts then."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(kind is not None)


class Closing(OfProcess, Scope):
    """A checkpointer, which its block closes."""

    _belongs = "a checkpointer belongs to its process"

    def close(self, finished: bool = False) -> None:
        raise NotImplementedError

    def _leave(self, failed: bool) -> None:
        try:
            self.close(finished=not failed)
        except Error:
            if not failed:
                raise
