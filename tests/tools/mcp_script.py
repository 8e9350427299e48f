"""An MCP server over stdio, of the standard library alone, so that it starts at once: `mcp_script.py FOLDER`.

What it offers beside its own tools stands in `FOLDER/tools.json`, a list of tools, which is read anew for every list. Each
start adds a line to `FOLDER/starts`, each call to `FOLDER/calls`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
READS: dict[str, Any] = {"readOnlyHint": True}
NOTHING = {"type": "object", "properties": {}}


def tool(name: str, description: str, schema: Mapping[str, Any] = NOTHING, **hints: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": schema, "annotations": hints}


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
OWN = [
    tool("echo", "Say it again.", TEXT, **READS),
    tool("fail", "Fail.", **READS),
    tool("parts", "Answer with several parts.", **READS),
    tool("image", "Draw.", **READS),
    tool("empty", "Answer nothing.", **READS),
    tool("die", "End the server.", **READS),
    tool("late", "Answer after a while.", **READS),
    tool("spawn", "Start a process that stays.", **READS),
    tool("environment", "The names of the server's variables.", **READS),
    tool("plain", "A tool without hints."),
    tool("delete_note", "Delete a note.", **READS),
    tool("agenda.reply Invite", "Reply.", **READS),
]
PIXEL = "iVBORw0KGgo="


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(said: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}]}


def note(file: str, line: str) -> None:
    with (FOLDER / file).open("a") as lines:
        lines.write(line + "\n")


def further() -> list[dict[str, Any]]:
    file = FOLDER / "tools.json"
    return json.loads(file.read_text()) if file.exists() else []


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    note("calls", name)
    if name == "echo":
        return text(arguments["text"])
    if name == "fail":
        return {**text("cannot reach the ledger"), "isError": True, "structuredContent": {"balance": 7}}
    if name == "parts":
        link = {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"}
        inner = {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "inside"}}
        return {"content": [{"type": "text", "text": "first"}, link, inner]}
    if name == "image":
        return {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]}
    if name == "empty":
        return {"content": []}
    if name == "odd":
        return {"content": 5}
    if name == "die":
        sys.stderr.write("about to die\n")
        sys.stderr.flush()
        os._exit(3)
    if name == "late":
        threading.Event().wait(0.5)
        return text("late")
    if name == "spawn":
        return text(str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid))
    if name == "environment":
        return text(" ".join(sorted(os.environ)))
    return text(f"{name} was called")


def answer(message: dict[str, Any]) -> None:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "script", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": OWN + further()}
    elif method == "tools/call":
        if params["name"] == "break":
            # The code that the SDK itself uses for a connection that has ended.
            send({"id": message["id"], "error": {"code": -32000, "message": "disk full"}})
            return
        result = call(params["name"], params.get("arguments", {}))
    else:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        return
    send({"id": message["id"], "result": result})


def tell_of_changes() -> None:
    seen = further()
    while True:
        threading.Event().wait(0.02)
        now = further()
        if now != seen:
            seen = now
            send({"method": "notifications/tools/list_changed"})


def main() -> None:
    note("starts", str(os.getpid()))
    if (FOLDER / "refuse").exists():
        sys.stderr.write("TOKEN is not set\n")
        sys.exit(1)
    threading.Thread(target=tell_of_changes, daemon=True).start()
    for line in sys.stdin:
        message = json.loads(line)
        if "method" in message and "id" in message:
            threading.Thread(target=answer, args=(message,), daemon=True).start()


if __name__ == "__main__":
    main()
