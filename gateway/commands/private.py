"""What is private, for commands that read the database themselves: what they print and record holds placeholders too.

Knows how a version is looked at without serving it. Where it cannot be built (a plugin is broken) nothing is known of its tools, and
all that looks like a number or an address is hidden.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gateway.approvals.masking import masked_arguments
from gateway.building import Builder
from gateway.clock import SystemClock
from gateway.errors import ConfigError
from gateway.observe.masked import masked_call_view
from gateway.security.masking.privacy import Privacy
from gateway.security.masking.secret import read_secret
from gateway.settings import Settings
from gateway.store.approval_records import ApprovalRow
from gateway.tools.registry import Registry


class PrivateView:
    """What a version says of private data.

    Args:
        tools: the version's, or None where it could not be built.
        privacy: its, or None where it asks for none.
    """

    def __init__(self, tools: Registry | None, privacy: Privacy | None) -> None:
        self._tools = tools
        self._privacy = privacy

    def secrets_of(self, tool: str) -> Collection[str]:
        """The sensitive parameters and result fields of a tool."""
        return () if self._tools is None else self._tools.secrets_of(tool)

    def approval(self, row: ApprovalRow, shown: Mapping[str, Any]) -> dict[str, Any]:
        """What is shown of an approval."""
        if self._tools is None:
            return {**shown, "arguments": msgspec.json.decode(masked_arguments(row.arguments)), "outcome": None}
        private = None if self._privacy is None else self._privacy.begin(row.owner, row.route)
        return dict(shown) if private is None else masked_call_view(private, row.tool, shown)


async def private_view(config_path: Path, routes_path: Path, settings: Settings) -> PrivateView:
    """That of the version on disk; asks nothing over a network and starts no server."""
    secret = partial(read_secret, settings.gateway_privacy_key)
    builder = Builder(config_path, routes_path, settings, SystemClock(), offline=True, secret=secret)
    try:
        snapshot = await builder.first()
        await builder.dismiss(snapshot)
        return PrivateView(snapshot.tools, snapshot.privacy)
    except ConfigError:
        return PrivateView(None, None)
    finally:
        await builder.close()
