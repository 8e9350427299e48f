"""What one version says of private data: for every route, what is looked for and what becomes of it.

Knows the configuration. Detectors are made by whoever builds the version: they load much that nobody needs who masks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from gateway.chat.blocks import Message
from gateway.config.privacy import PrivacyConfig, RoutePrivacy
from gateway.security.masking.masking import Detects, Masking
from gateway.security.masking.messages import Conversation
from gateway.security.masking.placeholders import Mint
from gateway.security.masking.recollection import Recollection
from gateway.security.masking.scrubbing import Scrub, scrubber
from gateway.security.masking.secret import Secret

# What fields with addresses are called, where the configuration asks for addresses and does not say.
_ADDRESSES: Final = (
    "address",
    "addr",
    "street",
    "street_address",
    "shipping_address",
    "billing_address",
    "delivery_address",
    "地址",
    "收货地址",
    "住址",
    "家庭住址",
)

SecretsOf = Callable[[str], Collection[str]]


class Privacy:
    """What is private, by route.

    Args:
        config: the gateway's section.
        routes: what routes say over it.
        secret: what placeholders are made with.
        detector_of: makes the detectors of a section.
        secrets_of: the sensitive parameters and result fields of a tool, by the name a model knows it by; None where no tool has any.
        recollection: remembers what was said in confidence.
    """

    def __init__(
        self,
        config: PrivacyConfig,
        routes: Mapping[str, RoutePrivacy],
        secret: Secret,
        detector_of: Callable[[PrivacyConfig], Detects],
        secrets_of: SecretsOf | None = None,
        recollection: Recollection | None = None,
    ) -> None:
        self._recollection = recollection
        self._secret = secret
        self._secrets_of = secrets_of
        self._config = config
        self._routes = {name: said.over(config) for name, said in routes.items()}
        self._detectors: list[tuple[PrivacyConfig, Detects]] = []
        for each in (config, *self._routes.values()):
            if each.mode != "none" and self._detector(each) is None:
                self._detectors.append((each, detector_of(each)))

    @property
    def scrub(self) -> Scrub | None:
        """Takes private values out of texts that are nobody's; None where nothing is looked for anywhere."""
        return scrubber([detector for _, detector in self._detectors]) if self._detectors else None

    def anywhere(self, owner: str) -> Conversation | None:
        """What is private where no route is known: what the gateway's own section says, else a route's."""
        of = next((name for name, config in self._routes.items() if config.mode != "none"), None)
        return self.begin(owner, None if self._config.mode != "none" else of)

    def begin(self, owner: str, route: str | None) -> Conversation | None:
        """What is private in a turn of this owner's, or None where nothing is looked for."""
        config = self._routes.get(route, self._config) if route is not None else self._config
        if config.mode == "none" and self._secrets_of is None:
            return None
        fields = {name.lower(): kind for kind, names in _fields(config).items() for name in names}
        return Conversation(
            Masking(
                self._detector(config) if config.mode != "none" else None,
                Mint(self._secret.minting(owner)),
                mode=config.mode,
                exempt=config.exempt_backends,
                fields=fields if config.mode != "none" else {},
                secrets_of=self._secrets_of,
                confide=partial(self._recollection.note, owner) if self._recollection is not None else None,
            )
        )

    async def recall(self, owner: str, private: Conversation, messages: Sequence[Message]) -> None:
        """Let a turn know what tools told its owner in confidence before, where it stands in these messages.

        Raises:
            StoreUnavailable: nobody can say.
        """
        if self._recollection is not None:
            await self._recollection.recall(owner, private, messages)

    def _detector(self, config: PrivacyConfig) -> Detects | None:
        return next((detector for of, detector in self._detectors if of == config), None)


def _fields(config: PrivacyConfig) -> Mapping[str, tuple[str, ...]]:
    if "address" not in config.kinds or "address" in config.fields:
        return config.fields
    return {"address": _ADDRESSES, **config.fields}
