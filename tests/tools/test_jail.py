from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.tools.jail import Jail, OutsideJail


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "R"
    (root / "a" / "deep").mkdir(parents=True)
    (root / "inside.txt").write_text("inside")
    (root / "a" / "deep" / "file.txt").write_text("deep")
    outside = tmp_path / "R-evil"
    outside.mkdir()
    (outside / "x").write_text("evil")
    (root / "leak").symlink_to(outside / "x")
    (root / "leak_relative").symlink_to("../R-evil/x")
    (root / "leak_folder").symlink_to("../R-evil")
    (root / "leak_prefix").symlink_to(f"{root}-evil/x")
    (root / "missing").symlink_to(tmp_path / "nothing")
    (root / "loop").symlink_to("loop")
    (root / "fine").symlink_to("inside.txt")
    (root / "fine_absolute").symlink_to(root.resolve() / "a" / "deep" / "file.txt")
    (root / "a" / "up").symlink_to("../inside.txt")
    (root / "a" / "folder").symlink_to("deep")
    os.mkfifo(root / "pipe")
    return root


OUTSIDE = [
    "leak",
    "leak_relative",
    "leak_folder/x",
    "leak_prefix",
    "missing",
    "loop",
    "../R-evil/x",
    "a/../../etc/hostname",
    "a/../../R-evil/x",
    "/etc/hostname",
    "leak\0.txt",
    "..%2f..%2fetc/hostname",
    "..",
    "nothing",
    "pipe",
    "a",
    "",
    ".",
    "inside.txt/..",
    "inside.txt/x",
    "a\\..\\..\\x",
    "x" * 5000,
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_b033_what_lies_outside_is_refused_in_the_same_words_as_what_does_not_exist(root: Path, path: str) -> None:
    with pytest.raises(OutsideJail) as caught:
        Jail(root).read(path, 1000)
    assert str(caught.value) == f"{path[:200]!r} is not a file or folder that can be read here"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("inside.txt", "inside"),
        ("./inside.txt", "inside"),
        ("a/../inside.txt", "inside"),
        ("fine", "inside"),
        ("fine_absolute", "deep"),
        ("a/up", "inside"),
        ("a/folder/file.txt", "deep"),
        ("a//deep/./file.txt", "deep"),
    ],
)
def test_b033_what_lies_inside_is_read_over_links_too(root: Path, path: str, text: str) -> None:
    assert Jail(root).read(path, 1000) == (text.encode(), len(text))


def test_no_more_is_read_than_asked_for(root: Path) -> None:
    assert Jail(root).read("inside.txt", 3) == (b"ins", 6)


def test_a_folder_is_listed_without_its_links(root: Path) -> None:
    jail = Jail(root)
    assert jail.entries("", 10) == [("a", None), ("inside.txt", 6)]
    assert jail.entries("a/folder", 10) == [("file.txt", 4)]
    assert jail.entries("", 1) == [("a", None)]
    for path in ("leak_folder", "..", "inside.txt", "/"):
        with pytest.raises(OutsideJail):
            jail.entries(path, 10)


def test_no_descriptor_stays_open(root: Path) -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    for path in [*OUTSIDE, "inside.txt", "a/folder/file.txt"]:
        try:
            Jail(root).read(path, 10)
        except OutsideJail:
            continue
    assert len(list(Path("/dev/fd").iterdir())) == before


@pytest.mark.parametrize("swapped", ["inside.txt", "a"])
def test_b033_a_link_that_is_put_in_between_check_and_opening_leads_nowhere(
    root: Path, swapped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.stat
    outside = root.parent / "R-evil"
    (outside / "deep").mkdir()
    (outside / "deep" / "file.txt").write_text("evil")

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        found = look(path, *args, **kwargs)
        if path == swapped and not (root / swapped).is_symlink():
            (root / swapped).rename(root / "aside")
            (root / swapped).symlink_to(outside / "x" if swapped == "inside.txt" else outside)
        return found

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(OutsideJail):
        Jail(root).read("inside.txt" if swapped == "inside.txt" else "a/deep/file.txt", 10)
    assert (root / swapped).is_symlink(), "nothing was swapped, and nothing proved"


def test_b033_a_file_that_becomes_a_link_and_back_is_read_from_inside_or_not_at_all(root: Path) -> None:
    ready, over = threading.Event(), threading.Event()

    def swap() -> None:
        number = 0
        while not over.is_set():
            number += 1
            beside = root / f"beside{number % 2}"
            beside.unlink(missing_ok=True)
            if number % 2:
                beside.symlink_to(root.parent / "R-evil" / "x")
            else:
                beside.write_text("inside")
            beside.replace(root / "inside.txt")
            ready.set()

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        assert ready.wait(20)
        seen = set()
        for _ in range(2000):
            try:
                seen.add(Jail(root).read("inside.txt", 10)[0])
            except OutsideJail:
                seen.add(b"refused")
    finally:
        over.set()
        swapping.join()
    assert b"evil" not in seen
    assert seen <= {b"inside", b"refused", b""}
