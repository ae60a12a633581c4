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


class Closing(OfProcess):
    """A context manager that closes a checkpointer; after an exception that one is what counts."""

    _belongs = "a checkpointer belongs to its process"

    def close(self, finished: bool = False) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close(finished=kind is None)
        except Error:
            if kind is None:
                raise
