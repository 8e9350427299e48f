"""Who is asking: the caller of a request, from its headers.

Knows the headers' names. Keys are the key ring's, roles the principal's.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace as replaced
from starlette.types import Scope

from gateway.api.address import address_of
from gateway.api.head import Said
from gateway.api.local import refuse_strangers
from gateway.errors import InvalidRequest, NotAllowed
from gateway.security.keys import LOCAL, KeyRing
from gateway.security.principal import Principal
from gateway.turn.prepare import NO_WISHES, Wishes

# Headers that wish for something; the last two under names of others.
_SPECIAL = frozenset(
    {
        b"x-gateway-user",
        b"x-gateway-tags",
        b"x-gateway-tools",
        b"x-gateway-fallbacks",
        b"x-gateway-events",
        b"x-gateway-deadline-ms",
        b"x-gateway-session",
        b"idempotency-key",
        b"x-stainless-retry-count",
    }
)
# Longer than any key that means to be one.
_LONGEST_KEY = 255
_LONGEST_USER = 256
# Bytes; indexes of databases end somewhere.
_LONGEST_SESSION = 512


class _Caller(msgspec.Struct, frozen=True):
    """Who sent a head, and what it wishes for: the same for as long as it is asked alike and the key is good.

    Attributes:
        keys: who was asked for the key, and `forward` which headers were to be kept.
        authorization: the header that holds the key, and `api_key` the other.
        bearer: whose the key is.
        read: what `read_headers` made of it.
    """

    keys: KeyRing
    forward: frozenset[str]
    authorization: str | None
    api_key: str | None
    bearer: Principal
    read: tuple[Principal, Wishes]


def read_before(said: Said, keys: KeyRing, now: float, forward: frozenset[str]) -> tuple[Principal, Wishes] | None:
    """What `read_headers` said of an earlier request with the same head; None where it has to be asked.

    Raises:
        Unauthenticated: the key has ended.
    """
    caller: _Caller | None = said.caller
    if caller is None or caller.keys is not keys or caller.forward is not forward:
        return None
    # A key of the configuration is good for as long as that is.
    if caller.bearer.digest is None or keys.remembered(caller.authorization, caller.api_key, now) is caller.bearer:
        return caller.read
    return None


async def read_headers(
    scope: Scope, keys: KeyRing, now: float, forward: frozenset[str] = frozenset(), said: Said | None = None
) -> tuple[Principal, Wishes]:
    """The caller, and what the headers wish for; of the others, those that `forward` names are kept.

    What is read is left in `said` for `read_before`.

    Raises:
        Unauthenticated: no key, or an unknown one.
        NotAllowed: a header that this key may not set; without keys, a request that a foreign page sent.
        InvalidRequest: a header that cannot be read.
        StoreUnavailable: it cannot be found out whose key it is.
    """
    # Clients send a dozen headers and more: looked up, not looked through.
    sent: dict[bytes, bytes] = dict(scope["headers"])
    authorization = str(sent[b"authorization"], "latin-1") if b"authorization" in sent else None
    api_key = str(sent[b"x-api-key"], "latin-1") if b"x-api-key" in sent else None
    bearer = keys.remembered(authorization, api_key, now)
    principal = bearer if bearer is not None else await keys.identify(authorization, api_key, now)
    special: dict[bytes, str] = {}
    if not _SPECIAL.isdisjoint(sent):
        # White space around a value is none of it (RFC 9110, 5.5); the parser leaves what stands behind.
        special = {name: str(sent[name].strip(b" \t"), "latin-1") for name in _SPECIAL if name in sent}
        if special.get(b"x-stainless-retry-count") == "0":
            del special[b"x-stainless-retry-count"]  # with every first request of OpenAI's SDKs: nothing special
    if principal is LOCAL:
        refuse_strangers(scope)
        principal = replaced(principal, address=address_of(scope, keys.trusted_proxies))
    if keys.user_headers or keys.session_headers:
        _named_elsewhere(scope, keys, principal, special)
    if special:
        principal, wishes = _with_special(principal, special)
    else:
        wishes = NO_WISHES
    if forward:
        kept = {str(name, "latin-1"): str(value, "latin-1") for name, value in scope["headers"]}
        wishes = replace(wishes, headers={name: kept[name] for name in forward if name in kept})
    if said is not None and bearer is not None and not _reads_length(keys, forward):
        said.caller = _Caller(keys, forward, authorization, api_key, bearer, (principal, wishes))
    return principal, wishes


def _reads_length(keys: KeyRing, forward: frozenset[str]) -> bool:
    """Whether something is made of the one header that is another's with each request."""
    return "content-length" in forward or b"content-length" in (*keys.user_headers, *keys.session_headers)


def for_user(principal: Principal, user: str | None) -> Principal:
    """The same caller with the end user that the body of a request names, where the key may name one and no header did.

    Raises:
        InvalidRequest: it is none that could be kept.
    """
    if not user or principal.user is not None or "set_user" not in principal.roles:
        return principal
    return replaced(principal, user=_end_user(user, "user"))


async def caller(scope: Scope, keys: KeyRing, now: float, *, role: str | None = None) -> Principal:
    """The caller of a gateway endpoint.

    Raises:
        Unauthenticated: no key, or an unknown one.
        NotAllowed: the key lacks `role`.
        StoreUnavailable: it cannot be found out whose key it is.
    """
    principal, _ = await read_headers(scope, keys, now)
    if role is not None and role not in principal.roles:
        raise NotAllowed(f"This needs a key with the role `{role}`.")
    return principal


def _named_elsewhere(scope: Scope, keys: KeyRing, principal: Principal, special: dict[bytes, str]) -> None:
    """Take end user and session from the headers that the configuration names, where the gateway's own are not there.

    A user that a key without the role names is nobody's word, and left alone: such headers belong to other programs.
    """
    sent = {name: str(value, "latin-1") for name, value in scope["headers"] if value}
    user = next((sent[name] for name in keys.user_headers if name in sent), None)
    if user is not None and "set_user" in principal.roles:
        special.setdefault(b"x-gateway-user", user)
    session = next((sent[name] for name in keys.session_headers if name in sent), None)
    if session is not None:
        special.setdefault(b"x-gateway-session", session)


def _end_user(name: str, param: str) -> str:
    if len(name) > _LONGEST_USER or not name.isprintable():
        raise InvalidRequest(
            f"`{param}` must name an end user in 1 to {_LONGEST_USER} printable characters.", param=param
        )
    return name


def _session(name: str) -> str:
    """The session that a header names; it is found by this name again, in a path too."""
    if len(name) > _LONGEST_SESSION:
        raise InvalidRequest(
            f"`x-gateway-session` must have at most {_LONGEST_SESSION} characters, not {len(name)}.",
            param="x-gateway-session",
        )
    if name.isascii():
        return name
    with suppress(UnicodeDecodeError):
        return name.encode("latin-1").decode()
    return name


def _with_special(principal: Principal, special: dict[bytes, str]) -> tuple[Principal, Wishes]:
    user = special.get(b"x-gateway-user")
    if user:
        if "set_user" not in principal.roles:
            raise NotAllowed("`x-gateway-user` needs a key with the role `set_user`.")
        principal = replaced(principal, user=_end_user(unquote(user), "x-gateway-user"))
    tags = frozenset(unquote(tag.strip()) for tag in special.get(b"x-gateway-tags", "").split(",") if tag.strip())
    if tags and "set_tags" not in principal.roles:
        raise NotAllowed("`x-gateway-tags` needs a key with the role `set_tags`.")
    tools: frozenset[str] | None = None
    if (named := special.get(b"x-gateway-tools")) is not None:
        names = frozenset(name.strip() for name in named.split(",") if name.strip())
        tools = frozenset() if names == {"none"} else names
    fallbacks = special.get(b"x-gateway-fallbacks")
    if fallbacks not in (None, "none"):
        raise InvalidRequest("`x-gateway-fallbacks` can only be `none`.", param="x-gateway-fallbacks")
    events = special.get(b"x-gateway-events")
    if events not in (None, "tools"):
        raise InvalidRequest("`x-gateway-events` can only be `tools`.", param="x-gateway-events")
    deadline_s: float | None = None
    if (deadline := special.get(b"x-gateway-deadline-ms")) is not None:
        # Not more digits than a year's milliseconds have, and none of the digits that `int` does not take.
        if not (deadline.isascii() and deadline.isdigit() and len(deadline) <= 11 and int(deadline)):
            raise InvalidRequest(
                f"`x-gateway-deadline-ms` is {deadline!r}; expected whole milliseconds above 0.",
                param="x-gateway-deadline-ms",
            )
        deadline_s = int(deadline) / 1000
    key = special.get(b"idempotency-key")
    if key is not None and not 0 < len(key) <= _LONGEST_KEY:
        raise InvalidRequest(
            f"`Idempotency-Key` must have 1 to {_LONGEST_KEY} characters, not {len(key)}.", param="Idempotency-Key"
        )
    retried = special.get(b"x-stainless-retry-count", "0") not in ("", "0")
    session = special.get(b"x-gateway-session")
    if session:
        session = _session(session)
    return principal, Wishes(
        tags, session, tools, deadline_s, fallbacks is None, key, retried, events=events is not None
    )
