"""`tools.lock.json`: the tools of servers as an operator has agreed to them.

Knows the file's form. What a pinned server offers beyond it, or otherwise, is refused by who asks here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.errors import ConfigError, Problem
from gateway.tools.remote import RemoteTool
from gateway.tools.sources import told

LOCK_NAME: Final = "tools.lock.json"
_FORM: Final = 1


class _Locked(msgspec.Struct, forbid_unknown_fields=True):
    hash: str
    description: str
    parameters: dict[str, Any]
    output: dict[str, Any] | None = None
    hints: dict[str, bool] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    servers: dict[str, dict[str, _Locked]]


@dataclass(frozen=True, slots=True)
class Lock:
    """Which tools of which servers are agreed to.

    Attributes:
        servers: the tools by their server's name.
    """

    servers: Mapping[str, Sequence[RemoteTool]] = field(default_factory=dict)

    def tools(self, server: str) -> Sequence[RemoteTool] | None:
        """A server's tools; None where the lock does not know it."""
        return self.servers.get(server)


def read_lock(path: Path) -> Lock:
    """What the file says; an empty lock where there is none.

    Raises:
        ConfigError: it is not a lock, or was changed by hand.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Lock()
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from error
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refused(path, f"it is not a lock of tools: {error}") from error
    if file.version != _FORM:
        raise _refused(path, f"its version is {file.version}; this program reads {_FORM}")
    servers: dict[str, list[RemoteTool]] = {}
    for server, tools in file.servers.items():
        servers[server] = []
        for name, each in tools.items():
            tool = RemoteTool(name, each.description, each.parameters, each.output, each.hints)
            if tool.digest != each.hash:
                raise _refused(path, f"`{name}` of `{server}` does not match its hash: it was changed by hand")
            servers[server].append(tool)
    return Lock(servers)


def write_lock(path: Path, lock: Lock) -> None:
    """Write the file anew, whole or not at all; the same tools make the same bytes."""
    servers = {
        server: {
            tool.name: _Locked(
                tool.digest,
                tool.description,
                dict(tool.parameters),
                None if tool.output is None else dict(tool.output),
                dict(tool.hints),
            )
            for tool in sorted(tools, key=lambda each: each.name)
        }
        for server, tools in sorted(lock.servers.items())
    }
    encoded = msgspec.json.encode(_File(_FORM, servers), order="deterministic")
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")
    beside.replace(path)


def _refused(path: Path, text: str) -> ConfigError:
    return ConfigError((Problem(told(path), 0, f"{text}; `hermes-gateway tools --lock` writes it anew"),))
