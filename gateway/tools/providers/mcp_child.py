"""Runs one program so that nothing of it outlives who started it: `mcp_child.py PARENT_PID COMMAND [ARGUMENT ...]`.

A program of its own, of the standard library alone, started in a process group of its own. The kernel tells it when the
gateway dies, however that happens, and it takes the whole group along; likewise when the program it runs has ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_NOT_STARTED: Final = 127


def _signal_when_parent_dies(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _end_all(_number: int = 0, _frame: FrameType | None = None) -> None:
    os.killpg(0, signal.SIGKILL)


def _become(command: list[str]) -> None:
    _signal_when_parent_dies(signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the operator's own command, without a shell
    except OSError as error:
        os.write(2, f"cannot start {command[0]!r}: {error.strerror}\n".encode())
    os._exit(_NOT_STARTED)


def main(parent: int, command: list[str]) -> None:
    """Run the command, wait for its end, and leave nobody of the group behind."""
    signal.signal(signal.SIGUSR1, _end_all)
    # Those who ask the group to end ask the program itself; this one goes when that has gone.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _signal_when_parent_dies(signal.SIGUSR1)
    if os.getppid() != parent:
        return  # it died before the kernel was asked to tell
    child = os.fork()
    if child == 0:
        _become(command)
    nothing = os.open(os.devnull, os.O_RDWR)
    # The pipes are the program's: their ends have to be seen when it ends.
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    _, status = os.waitpid(child, 0)
    os.write(2, f"ended with status {os.waitstatus_to_exitcode(status)}\n".encode())
    _end_all()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
