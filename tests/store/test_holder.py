"""A process's name tells whether it may still be at work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.store.holder import may_live, this_process

NAMED = "from gateway.store.holder import this_process; print(this_process(), flush=True); input()"


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", NAMED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.communicate()


def test_a_process_lives_until_it_is_killed_buried_or_not(other: tuple[subprocess.Popen[str], str]) -> None:
    process, name = other
    assert may_live(name)
    # An attempt's own name begins with its process's.
    assert may_live(f"{name}|attempt")
    process.kill()
    # Wait without burying it: a dead process that its parent has not looked at runs nothing.
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    assert not may_live(name)
    process.wait(10)
    assert not may_live(name)


def test_a_new_process_with_an_old_ones_number_is_another() -> None:
    machine, pid, _, rest = this_process().split("|")
    assert may_live(this_process())
    assert not may_live(f"{machine}|{pid}|1|{rest}")


@pytest.mark.parametrize("name", ["", "elsewhere/-/-|1|5|ab", "x|y", "elsewhere"])
def test_of_what_it_does_not_know_it_says_that_it_may_live(name: str) -> None:
    assert may_live(name)


def test_a_process_of_another_machine_boot_or_container_may_live() -> None:
    machine, _pid, began, rest = this_process().split("|")
    for other in (f"{machine}x", machine.replace("/", "/0", 1), f"other{machine}"):
        assert may_live(f"{other}|999999|{began}|{rest}")
    assert not may_live(f"{machine}|999999999|{began}|{rest}")


def test_two_gateways_of_one_process_have_names_of_their_own() -> None:
    assert this_process() != this_process()
