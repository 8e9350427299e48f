"""`python -m bench.counted FILE ...`: the program, counting the instructions of Python that its event loop executes.

SIGUSR1 begins to count, SIGUSR2 ends and writes the number to FILE. What is counted does not depend on the machine or on what
else it does, only on the code and on Python's version. What is written down behind, once a second, would: a slow machine has
more seconds. So what the store and its libraries do is not counted.
"""

from __future__ import annotations

import runpy
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

_BEHIND: Final = ("/sqlalchemy/", "/aiosqlite/", "/gateway/store/")


def main() -> None:
    """Run the gateway with the arguments behind the file's name."""
    file = Path(sys.argv[1])
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
        elif any(place in frame.f_code.co_filename for place in _BEHIND):
            return None
        else:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return trace

    def begin(_: int, __: FrameType | None) -> None:
        sys.settrace(trace)

    def end(_: int, __: FrameType | None) -> None:
        sys.settrace(None)
        file.write_text(str(count))

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    sys.argv = ["gateway", *sys.argv[2:]]
    runpy.run_module("gateway", run_name="__main__")


if __name__ == "__main__":
    main()
