"""What real clients sent and real servers answered, where the recordings are at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "fixtures"
needs_recordings = pytest.mark.skipif(not FOLDER.is_dir(), reason="the recordings are not on this machine")


def _lines(kind: str) -> list[dict[str, Any]]:
    files = sorted((FOLDER / kind).glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines() if line]


def client_requests() -> list[dict[str, Any]]:
    """Bodies of chat completion requests."""
    return [each["body"] for each in _lines("clients") if each["path"].endswith("chat/completions") and each["body"]]


def upstream_recordings(upstream: str) -> list[dict[str, Any]]:
    """Every request this server was recorded with, and what it answered."""
    return [each for each in _lines("upstreams") if each["upstream"] == upstream]


def upstream_answers() -> list[dict[str, Any]]:
    """Bodies of whole answers."""
    return [
        each["body"]
        for each in _lines("upstreams")
        if isinstance(each.get("body"), dict) and "choices" in each["body"] and "message" in each["body"]["choices"][0]
    ]


def upstream_streams() -> list[list[bytes]]:
    """Chunks of streamed answers, without the end mark."""
    found = []
    for each in _lines("upstreams"):
        if each.get("chunks"):
            found.append([json.dumps(chunk).encode() for chunk in each["chunks"]])
        elif each.get("path") == "/chat/completions" and each.get("lines"):
            data = [line.removeprefix("data: ") for line in each["lines"] if line.startswith("data: ")]
            found.append([line.encode() for line in data if line != "[DONE]"])
    return found
