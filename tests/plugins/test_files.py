from __future__ import annotations

from pathlib import Path

import pytest

from gateway.tools.jail import OutsideJail
from plugins.files import MAX_BYTES, list_files, read_file


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "shared"
    root.mkdir()
    monkeypatch.setenv("FILES_ROOT", str(root))
    return root


def test_files_are_listed_and_read(root: Path) -> None:
    (root / "报告.txt").write_text("销售额 128", "utf-8")
    (root / "folder").mkdir()
    assert list_files()["files"] == [{"name": "folder/", "bytes": 0}, {"name": "报告.txt", "bytes": 13}]
    assert read_file("报告.txt") == {"path": "报告.txt", "text": "销售额 128"}


def test_nothing_outside_is_read(root: Path) -> None:
    (root.parent / "secret.txt").write_text("secret")
    (root / "link.txt").symlink_to(root.parent / "secret.txt")
    for path in ("../secret.txt", "link.txt", "/etc/hostname"):
        with pytest.raises(OutsideJail):
            read_file(path)


def test_a_long_file_is_cut_between_characters_and_says_so(root: Path) -> None:
    (root / "long.txt").write_text("数" * MAX_BYTES, "utf-8")
    read = read_file("long.txt")
    assert set(read["text"]) == {"数"}
    assert read["left_out"] == f"{MAX_BYTES * 2} of {MAX_BYTES * 3} bytes"


def test_what_is_no_text_is_refused(root: Path) -> None:
    (root / "image.png").write_bytes(b"\x89PNG\0\0")
    with pytest.raises(ValueError, match="no text file"):
        read_file("image.png")


def test_without_a_folder_of_ones_own_there_are_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FILES_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert [file["name"] for file in list_files()["files"]] == ["stock.csv", "welcome.txt"]
    assert "Wireless mouse,130" in read_file("stock.csv")["text"]
