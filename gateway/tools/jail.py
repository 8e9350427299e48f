"""A folder that nothing leads out of.

Knows how to walk a path one name at a time from an open folder, following links only within it. Checks and opening are one
step each, so a link that is put in between changes nothing. POSIX only. Hard links look like any file and are not seen.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

# As many links as Linux follows in one path.
_MOST_LINKS = 40
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OutsideJail(Exception):
    """A path is not in the folder, does not exist, or is not what was asked for: always the same words, so that nobody
    learns what lies outside.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"{path[:200]!r} is not a file or folder that can be read here")


class Jail:
    """Read access to what lies under one folder. Blocks: call it in a thread."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)

    def read(self, path: str, max_bytes: int) -> tuple[bytes, int]:
        """The first `max_bytes` of a regular file, and its size in bytes.

        Raises:
            OutsideJail: there is no such file within the folder.
        """
        descriptor = self._open(path, _FILE)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OutsideJail(path)
            data = bytearray()
            while len(data) < max_bytes and (block := os.read(descriptor, max_bytes - len(data))):
                data += block
            return bytes(data), status.st_size
        finally:
            os.close(descriptor)

    def entries(self, path: str, most: int) -> list[tuple[str, int | None]]:
        """Names and sizes in bytes of what is in a folder, sorted, at most `most`; the size of a folder is None.

        Links, sockets and devices are not listed.

        Raises:
            OutsideJail: there is no such folder within the folder.
        """
        descriptor = self._open(path, _FOLDER)
        try:
            found: list[tuple[str, int | None]] = []
            with os.scandir(descriptor) as found_here:
                for entry in found_here:
                    if entry.is_dir(follow_symlinks=False):
                        found.append((entry.name, None))
                    elif entry.is_file(follow_symlinks=False):
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
            return sorted(found)[:most]
        finally:
            os.close(descriptor)

    def _open(self, path: str, flags: int) -> int:
        if "\0" in path or path.startswith(("/", "\\")):
            raise OutsideJail(path)
        opened: list[int] = []
        try:
            opened.append(os.open(self._root, _FOLDER))
            return self._walk(path, flags, opened)
        except OSError as error:
            raise OutsideJail(path) from error
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _walk(self, path: str, flags: int, opened: list[int]) -> int:
        """Open a path below `opened[0]`; the folders on the way stay in `opened`, so that `..` is a step back there."""
        waiting = [part for part in reversed(path.split("/")) if part not in {"", "."}]
        links = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                if len(opened) == 1:
                    raise OutsideJail(path)
                os.close(opened.pop())
                continue
            if stat.S_ISLNK(os.stat(part, dir_fd=opened[-1], follow_symlinks=False).st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise OutsideJail(path)
                target = self._inside(os.readlink(part, dir_fd=opened[-1]), path, opened)
                waiting.extend(each for each in reversed(target.split("/")) if each not in {"", "."})
                continue
            if not waiting:
                return os.open(part, flags, dir_fd=opened[-1])
            opened.append(os.open(part, _FOLDER, dir_fd=opened[-1]))
        return os.dup(opened[-1])

    def _inside(self, target: str, path: str, opened: list[int]) -> str:
        """A link's target relative to where the walk stands: an absolute one has to begin with the root."""
        if not target.startswith("/"):
            return target
        if target != self._root and not target.startswith(self._root.rstrip("/") + "/"):
            raise OutsideJail(path)
        while len(opened) > 1:
            os.close(opened.pop())
        return target[len(self._root) :]
