"""One request of each row before anything is measured: a subject that answers something else measures something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import aiohttp

from bench.gateway import LANES
from bench.rounds import GATEWAYS, Row
from bench.subjects import Subject, SubjectFailed

_TIMEOUT_S = 20.0


async def check(rows: Sequence[Row], subjects: Mapping[str, Subject]) -> None:
    """Raises SubjectFailed naming the first row, subject and fault."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for row in rows:
            for name in row.subjects:
                if name in subjects:
                    fault = await _fault(session, row, subjects[name])
                    if fault:
                        raise SubjectFailed(f"{name} cannot be measured at {row.name}: {fault}")


async def _fault(session: aiohttp.ClientSession, row: Row, subject: Subject) -> str | None:
    url, request = row.target(subject)
    head, _, body = request().partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    async with session.post(f"{url}/chat/completions", data=body, headers=headers) as response:
        text = await response.text()
        if response.status != 200:
            return f"status {response.status}, {text[:500]}"
        if row.stream and (not text.endswith("data: [DONE]\n\n") or text.count("data:") < 53):
            return f"the stream is not the mock's: {text[-500:]}"
        if not row.stream and '"stop"' not in text:
            return f"the answer is not the mock's: {text[:500]}"
        if subject.name in GATEWAYS:
            route, expected = response.headers.get("x-gateway-route"), row.word if row.word in LANES else "-"
            if route != expected:
                return f"route {route!r} answered, expected {expected!r}"
    return None
