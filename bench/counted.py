"""`python -m bench.counted FILE ...`: the program, counting the instructions of Python that its event loop executes.

SIGUSR1 begins to count, SIGUSR2 ends and writes two numbers to FILE: all, and those that somebody waits for. What is counted does
not depend on the machine or on what else it does, only on the code and on Python's version. What is written down behind, once a
second, would: a slow machine has more seconds. So what the store and its libraries do is not counted.

A client waits from its bytes on until the upstream is asked, and from the upstream's bytes on until it is sent some itself. Of several
requests at once, one's wait would be another's: that number is right where they come one after the other.
"""

from __future__ import annotations

import runpy
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

from gateway.api.connection import Connection
from gateway.api.cycle import Cycle
from gateway.backends import http1

_ARRIVED: Final = frozenset({Connection.data_received.__code__, http1.Connection.data_received.__code__})
_ASKED: Final = http1.Connection.ask.__code__
# A piece of an answer, and what follows the last at once.
_ANSWERED: Final = frozenset({Cycle._go_on.__code__, Cycle._ended.__code__})  # noqa: SLF001 - where it is written
_BEHIND: Final = ("/sqlalchemy/", "/aiosqlite/", "/gateway/store/")


def main() -> None:
    """Run the gateway with the arguments behind the file's name."""
    file = Path(sys.argv[1])
    count = waited = 0
    waits = False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count, waited, waits
        code = frame.f_code
        if event == "opcode":
            count += 1
            waited += waits
        elif any(place in code.co_filename for place in _BEHIND):
            return None
        else:
            if event == "call" and code in _ARRIVED:
                waits = True
            elif (event == "return" and code is _ASKED) or code in _ANSWERED:
                waits = False
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return trace

    def begin(_: int, __: FrameType | None) -> None:
        sys.settrace(trace)

    def end(_: int, __: FrameType | None) -> None:
        sys.settrace(None)
        file.write_text(f"{count} {waited}")

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    sys.argv = ["gateway", *sys.argv[2:]]
    runpy.run_module("gateway", run_name="__main__")


if __name__ == "__main__":
    main()
