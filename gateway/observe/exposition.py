"""Several workers' metrics as one text: every series once a worker, each metric under one heading.

Knows Prometheus' text format as `prometheus_client` writes it. Sums are left to who reads it: a worker that is replaced begins
at 0, which a sum would show as a step back.
"""

from __future__ import annotations

from collections.abc import Mapping


def join_workers(texts: Mapping[int, bytes]) -> bytes:
    """One text of all; `worker` is the first label of each series.

    Args:
        texts: each worker's own, by its number.
    """
    heads: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for number in sorted(texts):
        name = ""
        for line in texts[number].decode().splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                heads.setdefault(name, [line])
                series.setdefault(name, [])
            elif line.startswith("# TYPE "):
                heads[name][1:] = [line]
            elif line:
                series[name].append(_labelled(line, number))
    lines = [line for name, head in heads.items() for line in (*head, *series[name])]
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(line: str, number: int) -> str:
    # A metric's name has neither a brace nor a space in it.
    end = min(at for at in (line.find("{"), line.find(" ")) if at >= 0)
    rest = line[end:]
    return f'{line[:end]}{{worker="{number}"' + (f",{rest[1:]}" if rest[0] == "{" else f"}}{rest}")
