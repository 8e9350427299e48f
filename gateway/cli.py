"""The program's commands and their arguments.

Knows words; each command's work is in `gateway/commands/`, imported when it is asked for, so that `--help` costs nothing.
Exit codes: 0 done, 1 problems found, 2 wrong usage, 3 unreachable.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway import __version__
from gateway.commands.loading import loaded
from gateway.config.defaults import DEFAULT_CONFIG, DEFAULT_ROUTES


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    arguments = _parser().parse_args(argv)
    module = loaded(f"gateway.commands.{arguments.command}")
    try:
        code: int = module.run(arguments)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has had enough
        return 0
    except KeyboardInterrupt:
        return 130
    return code


def _port(text: str) -> int:
    # The socket would take the number modulo 65536, and listen where nobody looks.
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 65535, not {text!r}")
    return int(text)


def _workers(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 256):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 256, not {text!r}")
    return int(text)


def _turns(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10_000):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 10000, not {text!r}")
    return int(text)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, parent: argparse.ArgumentParser, does: str
) -> argparse.ArgumentParser:
    """A command whose own `--help` says what it does, as the list of all does."""
    return commands.add_parser(name, parents=[parent], help=does, description=f"{does[0].upper()}{does[1:]}.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hermes-gateway",
        description="An OpenAI-compatible gateway that routes, offers tools and runs them itself.",
    )
    parser.add_argument("--version", action="version", version=f"hermes-gateway {__version__}")
    config = argparse.ArgumentParser(add_help=False)
    config.add_argument("--config", type=Path, help=f"the gateway's file (default: GATEWAY_CONFIG or {DEFAULT_CONFIG})")
    files = argparse.ArgumentParser(add_help=False, parents=[config])
    files.add_argument(
        "--routes", type=Path, help=f"the folder of routes (default: GATEWAY_ROUTES or {DEFAULT_ROUTES})"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = _command(commands, "serve", files, "serve until told to stop")
    serve.add_argument("--host", help="address to listen on (default: server.host)")
    serve.add_argument("--port", type=_port, help="port to listen on (default: PORT or server.port)")
    serve.add_argument("--workers", type=_workers, default=1, help="processes that share the port (default: 1)")

    check = _command(commands, "check", files, "validate config, routes and tools")
    check.add_argument("--offline", action="store_true", help="ask nothing over a network; unset variables only warn")
    check.add_argument("--format", choices=("text", "github", "json"), default="text", help="how problems are printed")
    check.add_argument("--strict", action="store_true", help="warnings count as problems")

    explain = _command(commands, "explain", files, "show where a text is routed, and why")
    explain.add_argument("text", metavar="TEXT", help="what a user would say")
    explain.add_argument("--json", action="store_true", help="machine-readable")
    explain.add_argument("--tag", action="append", default=[], metavar="TAG", help="a routing tag; may be repeated")
    explain.add_argument("--key", help="name of a key under keys.static whose tags and routes count")

    evaluate = _command(commands, "eval", files, "measure the router on labelled lines")
    evaluate.add_argument("file", type=Path, metavar="FILE.jsonl", help="lines of text or messages, and their route")
    evaluate.add_argument("--json", action="store_true", help="machine-readable")
    evaluate.add_argument("--report", type=Path, metavar="FILE.md", help="write a Markdown report there")
    evaluate.add_argument("--min-accuracy", type=float, metavar="X", help="exit 1 when `all` is below X (0 to 1)")

    calibrate = _command(commands, "calibrate", files, "fit semantic thresholds and write them down")
    calibrate.add_argument("--file", type=Path, metavar="FILE.jsonl", help="labelled lines to fit on beside utterances")
    calibrate.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when the file is stale or missing"
    )

    suggest = _command(commands, "suggest", files, "list what people asked that no route was sure of")
    suggest.add_argument("--format", choices=("text", "json"), default="text", help="YAML to paste, or JSON")
    suggest.add_argument(
        "--limit", type=_turns, default=1000, help="newest turns to look at (default: 1000, at most 10000)"
    )

    tools = _command(commands, "tools", files, "list the registry of tools")
    tools.add_argument("--check", action="store_true", help="run the tools' self-checks and lint them")
    tools.add_argument("--strict", action="store_true", help="warnings count as problems")
    tools.add_argument("--lock", action="store_true", help="write tools.lock.json: the MCP servers' tools as they are")
    tools.add_argument("--json", action="store_true", help="machine-readable")

    trace = _command(commands, "trace", files, "replay a turn")
    trace.add_argument("id", metavar="ID", help="a trace, request, response or approval id")
    trace.add_argument("--json", action="store_true", help="machine-readable")

    chat = _command(commands, "chat", files, "talk to a running gateway, showing each step")
    chat.add_argument("--url", help="the gateway's address (default: GATEWAY_URL or http://127.0.0.1:8080)")
    chat.add_argument("--model", default="auto", help="model to ask for (default: auto)")

    rollback = _command(commands, "rollback", files, "go back to an earlier version on every replica")
    rollback.add_argument(
        "generation", metavar="GENERATION", type=int, nargs="?", help="which one (default: the one before the active)"
    )
    rollback.add_argument("--url", help="the gateway's address (default: GATEWAY_URL or http://127.0.0.1:8080)")

    effects = _command(commands, "effects", files, "what writing tools did, and what became of it")
    effects.add_argument("action", choices=("list", "settle", "retry"), nargs="?", default="list", help="default: list")
    effects.add_argument("id", metavar="ID", nargs="?", help="settle, retry: the effect")
    effects.add_argument("--status", choices=("started", "done", "failed", "unknown"), help="list: only these")
    effects.add_argument("--limit", type=int, default=20, metavar="N", help="list: how many, at most 100 (default: 20)")
    effects.add_argument("--after", metavar="ID", help="list: older than this one")
    outcome = effects.add_mutually_exclusive_group()
    outcome.add_argument("--done", dest="outcome", action="store_const", const="done", help="settle: it happened")
    outcome.add_argument("--failed", dest="outcome", action="store_const", const="failed", help="settle: it did not")
    effects.add_argument("--reason", metavar="TEXT", help="settle: how that is known")
    effects.add_argument("--content", metavar="JSON", help="settle: what the tool would have answered")
    effects.add_argument("--json", action="store_true", help="machine-readable")

    approvals = _command(commands, "approvals", files, "what waits for a human; approve or reject it")
    approvals.add_argument(
        "action", choices=("list", "show", "approve", "reject"), nargs="?", default="list", help="default: list"
    )
    approvals.add_argument("id", metavar="ID", nargs="?", help="show, approve, reject: the approval")
    approvals.add_argument(
        "--status",
        choices=("pending", "approved", "rejected", "expired", "withdrawn", "locked"),
        help="list: only these",
    )
    approvals.add_argument(
        "--limit", type=int, default=20, metavar="N", help="list: how many, at most 100 (default: 20)"
    )
    approvals.add_argument("--after", metavar="ID", help="list: older than this one")
    approvals.add_argument("--code", metavar="CODE", help="approve: the code of a deletion")
    approvals.add_argument("--reason", metavar="TEXT", help="approve, reject: why")
    approvals.add_argument("--json", action="store_true", help="machine-readable")

    audit = _command(commands, "audit", files, "who has done what; whether that was changed")
    audit.add_argument("action", choices=("list", "verify"), nargs="?", default="list", help="default: list")
    audit.add_argument("--limit", type=int, default=20, metavar="N", help="list: how many, at most 100 (default: 20)")
    audit.add_argument("--after", type=int, metavar="ID", help="list: older than this one")
    audit.add_argument("--json", action="store_true", help="machine-readable")

    keys = _command(commands, "keys", config, "make, change, exchange and end keys")
    keys.add_argument(
        "action",
        choices=("list", "create", "change", "rotate", "revoke", "import"),
        nargs="?",
        default="list",
        help="default: list",
    )
    keys.add_argument("id", metavar="ID", nargs="?", help="change, rotate, revoke: the key; import: a file of lines")
    keys.add_argument("--name", help="what people call it")
    keys.add_argument("--team", help="a team of the configuration")
    for name, words in (
        ("roles", "admin, approver, set_user, set_tags, metrics"),
        ("tags", "routing tags"),
        ("models", "model names it may ask for"),
        ("routes", "routes it may be sent to; here it is not the folder"),
        ("tools", "registry tools it may be offered"),
    ):
        keys.add_argument(f"--{name}", metavar="A,B", help=words)
    keys.add_argument("--expires", metavar="WHEN", help="30d, 12h, or a time such as 2030-01-31T12:00:00Z")
    for name, example in (("limit", "requests_per_min=60"), ("budget", "month=50")):
        keys.add_argument(
            f"--{name}", action="append", default=[], metavar="NAME=VALUE", help=f"as in {example}; may be repeated"
        )
    blocking = keys.add_mutually_exclusive_group()
    blocking.add_argument(
        "--block", dest="blocked", action="store_true", default=None, help="change: refuse it for now"
    )
    blocking.add_argument("--unblock", dest="blocked", action="store_false", default=None, help="change: take it again")
    keys.add_argument("--sha256", metavar="HEX", help="create: a key of another product, by its SHA-256")
    keys.add_argument(
        "--overlap", metavar="TIME", default="0", help="rotate: how long the old secret goes on, as in 24h"
    )
    keys.add_argument("--json", action="store_true", help="machine-readable")

    usage = _command(commands, "usage", files, "what was used, by whom and for how much")
    usage.add_argument(
        "--by", default="day", metavar="A,B", help="day, key, user, team, route, model, backend (default: day)"
    )
    usage.add_argument("--from", dest="since", metavar="DAY", help="the first day, as in 2025-01-31")
    usage.add_argument("--to", dest="until", metavar="DAY", help="the last day")
    usage.add_argument("--csv", action="store_true", help="comma-separated, with a head")
    usage.add_argument("--json", action="store_true", help="machine-readable")
    _command(commands, "worker", files, "execute background runs; needs REDIS_URL")

    runs = _command(commands, "runs", files, "background runs, and what became of them")
    runs.add_argument(
        "action", choices=("list", "show", "cancel", "retry", "submit"), nargs="?", default="list", help="default: list"
    )
    runs.add_argument(
        "id", metavar="ID", nargs="?", help="show, cancel, retry: the run; submit: a plugin's type of runs"
    )
    runs.add_argument("--input", default="{}", metavar="JSON", help="submit: what the run is given (default: {})")
    runs.add_argument(
        "--status",
        choices=("queued", "running", "cancelling", "completed", "failed", "cancelled"),
        help="list: only these",
    )
    runs.add_argument("--dead", action="store_true", help="list: only those that were begun as often as may be")
    runs.add_argument("--limit", type=int, default=20, metavar="N", help="list: how many, at most 100 (default: 20)")
    runs.add_argument("--after", metavar="ID", help="list: older than this one")
    runs.add_argument(
        "--from",
        dest="stage",
        default="last",
        metavar="STAGE",
        help="retry: go on from the `last` recorded step (default), from a round's number or a step's name, or from the "
        "`start`; `show` lists them",
    )
    runs.add_argument("--json", action="store_true", help="machine-readable")

    database = _command(commands, "db", files, "look after the database")
    database.add_argument("action", choices=("upgrade",), help="bring its tables up to date")
    return parser
