"""Reading files of one folder, and of no other.

The folder is `FILES_ROOT`, or data/files, which is made with two sample files on first use.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from gateway.tools import Tools, tool
from gateway.tools.jail import Jail

MAX_BYTES = 64 * 1024
MAX_ENTRIES = 200
_SAMPLES = Path(__file__).parent / "sample_files"


@tool
def list_files(folder: str = "") -> dict[str, Any]:
    """List the files in the shared folder when the user asks which files there are (列出文件, 有哪些文件, 目录).

    folder: a folder within it, for example reports; empty for the top
    """
    found = _jail().entries(folder, MAX_ENTRIES)
    return {"files": [{"name": f"{name}/" if size is None else name, "bytes": size or 0} for name, size in found]}


@tool
def read_file(path: str) -> dict[str, Any]:
    """Read a text file from the shared folder when the user names a file (读取文件, 打开文件, 文件内容).

    path: the file's path within the folder, for example welcome.txt
    """
    data, size = _jail().read(path, MAX_BYTES)
    if b"\0" in data:
        raise ValueError(f"{path!r} is no text file")
    # A character cut in two by the limit is dropped; what is no UTF-8 at all becomes replacement characters.
    text = data.decode("utf-8", "replace") if size <= MAX_BYTES else data.decode("utf-8", "ignore")
    found: dict[str, Any] = {"path": path, "text": text}
    if size > len(data):
        found["left_out"] = f"{size - len(data)} of {size} bytes"
    return found


def register(registry: Tools) -> None:
    """Add both tools."""
    registry.add(list_files, read_file)


def _jail() -> Jail:
    named = os.environ.get("FILES_ROOT")
    root = Path(named or "data/files")
    if not named and not root.exists():
        shutil.copytree(_SAMPLES, root, dirs_exist_ok=True)
    return Jail(root)
