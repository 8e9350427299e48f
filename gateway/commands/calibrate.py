"""`hermes-gateway calibrate`: fit thresholds and margins, and write them down as part of the version."""

from __future__ import annotations

import argparse
import asyncio
import sys
from hashlib import blake2b
from pathlib import Path

import msgspec

from gateway.building import Builder
from gateway.clock import SystemClock
from gateway.commands.files import paths_of, settings_of, tell
from gateway.commands.labelled import labelled_in
from gateway.config.calibration import CalibrationFile, written
from gateway.config.files import CALIBRATION, display
from gateway.errors import ConfigError
from gateway.routing.calibrated import SCORING
from gateway.routing.composite import CompositeRouter
from gateway.routing.encoder import EncoderFailed
from gateway.settings import Settings
from gateway.turn.labelled import Labelled
from gateway.turn.snapshot import Snapshot


def run(arguments: argparse.Namespace) -> int:
    """Fit and write; with `--check` only look. 1 where there is nothing to fit, or the file is stale or missing."""
    try:
        return asyncio.run(_run(arguments, settings_of()))
    except ConfigError as error:
        return tell(error)
    except (EncoderFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1


async def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    config_path, routes_path = paths_of(arguments, settings)
    builder = Builder(config_path, routes_path, settings, SystemClock())
    try:
        bundle = await builder.read()
        snapshot = await builder.first()
        try:
            labelled = []
            if arguments.file is not None:
                labelled = await asyncio.to_thread(labelled_in, arguments.file, snapshot)
            if not snapshot.calibration.keys:
                print("There is nothing to calibrate: no route has utterances, or semantic routing is off.")
                return 0 if arguments.check else 1
            path = routes_path / CALIBRATION
            if arguments.check:
                return _check(path, bundle.calibration, snapshot, _digest(labelled))
            file = await _fitted(snapshot, labelled)
            await asyncio.to_thread(_write, path, written(file))
        finally:
            await builder.dismiss(snapshot)
    finally:
        await builder.close()
    _tell(path, file, snapshot)
    return 0


def _check(path: Path, file: CalibrationFile | None, snapshot: Snapshot, labelled: str | None) -> int:
    reason = snapshot.calibration.reason
    if file is None:
        reason = "there is no such file"
    elif not reason and labelled is not None and labelled != file.labelled:
        reason = "it was fitted on other labelled lines"
    print(f"{display(path)}: {f'stale: {reason}' if file and reason else reason or 'fresh'}")
    return 1 if reason else 0


async def _fitted(snapshot: Snapshot, labelled: list[Labelled]) -> CalibrationFile:
    router = snapshot.router
    if not isinstance(router, CompositeRouter):
        raise TypeError(f"{type(router).__name__} cannot be calibrated")
    encoders = await router.calibrate([(each.facts, each.line.route) for each in labelled])
    return CalibrationFile(scoring=SCORING, labelled=_digest(labelled), encoders=encoders)


def _digest(labelled: list[Labelled]) -> str | None:
    """Of what lines ask for and expect, whatever their order; None where there are none."""
    if not labelled:
        return None
    asked = sorted(
        msgspec.json.encode((each.line, sorted(each.wishes.tags), each.principal.key_id)) for each in labelled
    )
    return blake2b(b"\n".join(asked), digest_size=16).hexdigest()


def _write(path: Path, text: str) -> None:
    """All of it or nothing: a gateway may be about to read it."""
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _tell(path: Path, file: CalibrationFile, snapshot: Snapshot) -> None:
    print(f"Wrote {display(path)}.")
    for name, found in sorted(file.encoders.items()):
        kept = "" if found.kept is None else f", keeps {found.kept:.1%} of the utterances"
        lines = f", {found.lines} labelled lines" if found.lines else ""
        print(f"{name}: threshold {found.threshold:.3f}, margin {found.margin:.3f}{lines}{kept}")
    semantic = snapshot.config.router.semantic
    for key, value in (("threshold", semantic.threshold), ("margin", semantic.margin)):
        if value != "auto":
            print(f"`router.semantic.{key}` is {value:g} and outweighs it.", file=sys.stderr)
