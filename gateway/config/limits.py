"""What callers may use: rates, budgets, prices, teams.

Knows shapes, defaults and units. Who is counted under which name is `security/allowances.py`'s.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gateway.config.section import Name, NonEmpty, Section, no_truth_value

# More than this no counter has to tell apart, in money and in tokens.
_MOST = 1_000_000_000
Money = Annotated[float, BeforeValidator(no_truth_value), Field(ge=0, le=_MOST)]
Count = Annotated[int, BeforeValidator(no_truth_value), Field(ge=1, le=_MOST)]


class Limits(Section):
    """How much at once and how much in a minute; None: as much as you like."""

    requests_per_min: Count | None = None
    tokens_per_min: Count | None = None
    concurrent_turns: Count | None = None


class CallerLimits(Limits):
    """What each caller has, and what happens while the shared counters cannot be reached."""

    store_down: Literal["open", "closed"] = "open"


class Budgets(Section):
    """How much money in a day, in a month, and ever; None: as much as you like."""

    day: Money | None = None
    month: Money | None = None
    total: Money | None = None


class CallerBudgets(Budgets):
    """What each caller has, and how money is counted."""

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    timezone: NonEmpty = "UTC"
    tags: dict[NonEmpty, Budgets] = Field(default_factory=dict)
    warn_at: float = Field(default=0.8, gt=0, le=1)
    unknown_price: Literal["allow", "refuse"] = "allow"
    store_down: Literal["open", "closed"] = "closed"

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"there is no time zone {value!r}; expected a name such as Europe/Berlin") from error
        return value


class PriceConfig(Section):
    """What a million tokens cost."""

    input_per_mtok: Money
    output_per_mtok: Money
    cached_input_per_mtok: Money | None = None


class TeamConfig(Section):
    """What the keys of a team have in common."""

    tags: tuple[NonEmpty, ...] = ()
    models: tuple[NonEmpty, ...] | None = None
    routes: tuple[NonEmpty, ...] | None = None
    tools: tuple[NonEmpty, ...] | None = None
    limits: Limits = Limits()
    budgets: Budgets = Budgets()


Role = Literal["admin", "approver", "set_user", "set_tags", "metrics"]
ROLES: Final = frozenset(get_args(Role))


class OidcConfig(Section):
    """Bearer tokens of an identity provider that count as keys."""

    issuer: NonEmpty
    audience: NonEmpty
    jwks_url: NonEmpty
    algorithms: tuple[Literal["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"], ...] = ("RS256", "ES256")
    user_claim: NonEmpty = "sub"
    team_claim: NonEmpty | None = None
    roles_claim: NonEmpty | None = None
    roles: dict[NonEmpty, tuple[Role, ...]] = Field(default_factory=dict)
    team: Name | None = None

    @model_validator(mode="after")
    def _safe(self) -> OidcConfig:
        if re.match(r"https://[^/\s]|http://(127\.0\.0\.1|localhost|\[::1\])[:/]", self.jwks_url) is None:
            raise ValueError("`jwks_url` must start with https://: whoever answers for it decides who may call")
        return self
