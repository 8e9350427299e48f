"""Which process holds something in the store, and whether it may still be at work.

Knows processes of this machine; of another machine it knows nothing, and says that they may live.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def this_process() -> str:
    """A name for this process that no other ever has: machine, process id, when it began, and a random part."""
    pid = os.getpid()
    return f"{_machine()}|{pid}|{_began(pid) or '-'}|{secrets.token_hex(4)}"


def may_live(holder: str) -> bool:
    """Whether the process of this name may still run; False only where it certainly does not."""
    machine, _, rest = holder.partition("|")
    pid, _, rest = rest.partition("|")
    began = rest.partition("|")[0]
    if machine != _machine() or not pid.isdigit() or began in ("", "-"):
        return True
    found = _began(int(pid))
    return found == began if found is not None else _hidden(int(pid))


def _machine() -> str:
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = "-"
    try:  # process ids mean something within their namespace only: containers may share a machine and its name
        within = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        within = "-"
    return f"{socket.gethostname()}/{boot}/{within}"


def _hidden(pid: int) -> bool:
    """Whether there is a process of this id that this one may not look at. A dead one that nobody has buried is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not Path(f"/proc/{pid}/stat").exists()


def _began(pid: int) -> str | None:
    """When a process began, in clock ticks since the machine did; None where there is no such process, or no way to tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in brackets may hold spaces and brackets: fields are counted behind the last one.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]
