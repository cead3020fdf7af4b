"""Where pictures are read from and results are written to."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from deblur.batch.files import write_atomically
from deblur.images import Limits, read_file

Times = tuple[int, int]  # of access and of modification, ns


class Store(Protocol):
    """What the pipeline asks of a place for files."""

    def read(self, source: Path | str, limits: Limits) -> tuple[bytes, Times | None]:
        """Content and times of an input.

        Raises:
            ImageError: It cannot be read.
        """
        ...

    def exists(self, output: str) -> bool:
        """Whether a result of that name is there."""
        ...

    def write(self, output: str, content: bytes, times_ns: Times | None) -> None:
        """Writes a result whole or not at all.

        Raises:
            OutputError: It cannot be written.
        """
        ...


class LocalStore:
    """Files of this machine, results below a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def read(self, source: Path | str, limits: Limits) -> tuple[bytes, Times | None]:
        """Content and times of an input."""
        path = Path(source)
        content = read_file(path, limits)
        state = path.stat()
        return content, (state.st_atime_ns, state.st_mtime_ns)

    def exists(self, output: str) -> bool:
        """Whether a result of that name is there."""
        return (self.folder / output).exists()

    def write(self, output: str, content: bytes, times_ns: Times | None) -> None:
        """Writes a result whole or not at all."""
        write_atomically(self.folder / output, content, times_ns)
