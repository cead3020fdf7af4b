"""Writing that cannot leave half a file, and finding what a killed run left behind."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import socket
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from deblur.errors import OutputError

_TEMPORARY = re.compile(r"\.deblur-([0-9a-f]{8})-(\d+)-\d+\.tmp")
_ABANDONED_AFTER_S = 24 * 3600
_numbers = itertools.count()
_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENAMETOOLONG: "the name is too long for this file system",
    errno.ENOENT: "no such file or folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.ELOOP: "the links lead round in a circle",
}


def reason(error: OSError) -> str:
    """Why the operating system refused, in plain words."""
    return _REASONS.get(error.errno or 0, error.strerror or str(error))


def write_atomically(path: Path, content: bytes, times_ns: tuple[int, int] | None = None) -> None:
    """Writes a file whole or not at all: temporary file in its folder, fsync, rename, fsync of the folder.

    Args:
        path: Where to; replaced if it is there. Missing folders are made.
        content: All of it.
        times_ns: Times of access and of modification to give the file.

    Raises:
        OutputError: The file cannot be written; says why.
    """
    temporary = path.parent / f".deblur-{_host()}-{os.getpid()}-{next(_numbers)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if times_ns is not None:
            os.utime(temporary, ns=times_ns)
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OutputError(f"{path}: cannot be written: {reason(error)}") from error


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system lets a folder be synced
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def remove_abandoned(folders: Iterable[Path]) -> int:
    """Removes temporary files that a killed run left in these folders; returns how many.

    A file goes when the process that wrote it is gone from this machine, or when it is a day old.
    """
    removed = 0
    for folder in folders:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                match = _TEMPORARY.fullmatch(entry.name)
                if match and _is_abandoned(entry, match[1], int(match[2])):
                    Path(entry.path).unlink()
                    removed += 1
    return removed


def _is_abandoned(entry: os.DirEntry[str], host: str, process: int) -> bool:
    if host == _host():
        return not _is_alive(process)
    return time.time() - entry.stat().st_mtime > _ABANDONED_AFTER_S


def _is_alive(process: int) -> bool:
    if process == os.getpid():
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def check_writable(folder: Path) -> None:
    """Makes a folder and writes a file there once, before any work is done.

    Raises:
        OutputError: It cannot be done; says why.
    """
    probe = folder / f".deblur-{_host()}-{os.getpid()}-{next(_numbers)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except FileExistsError as error:
        raise OutputError(f"{folder}: expected a folder for the output, got a file") from error
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {reason(error)}") from error
