"""What is private, and what becomes of it: the `privacy` section of the gateway's file and of routes.

Knows shapes and defaults. What the kinds mean is `security/masking/`'s.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import re2
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from gateway.config.section import Name, NonEmpty, Section

Kind = Literal["phone", "id_number", "bank_card", "iban", "email", "address"]
Mode = Literal["none", "mask", "block"]
# By the names of stdnum's modules.
IdNumber = Literal[
    "cn.ric", "br.cpf", "ca.sin", "de.idnr", "dk.cpr", "es.dni", "es.nie", "fi.hetu", "fr.nir", "in_.aadhaar",
    "it.codicefiscale", "jp.in_", "kr.rrn", "nl.bsn", "pl.pesel", "se.personnummer", "us.ssn",
]  # fmt: skip
# Countries that have telephones, as libphonenumber knows them.
REGIONS: Final = frozenset(
    (
        "AC AD AE AF AG AI AL AM AO AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BW BY "
        "BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ "
        "FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GT GU GW GY HK HN HR HT HU ID IE IL IM IN IO IQ IR "
        "IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH "
        "MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK "
        "PL PM PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TA "
        "TC TD TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG US UY UZ VA VC VE VG VI VN VU WF WS XK YE YT ZA ZM ZW"
    ).split()
)


def _linear(pattern: str) -> str:
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else "invalid"
        said = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"the pattern {pattern!r} is not one that RE2 takes: {said}") from error
    except UnicodeEncodeError as error:
        raise ValueError("the pattern holds half of a surrogate pair") from error
    return pattern


def _region(region: str) -> str:
    if region not in REGIONS:
        raise ValueError(f"{region!r} is no country that telephones, in two capital letters: `CN`, `US`, `DE`")
    return region


Pattern = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_linear)]
Region = Annotated[str, AfterValidator(_region)]


class _Said(Section):
    """What both files may say."""

    @model_validator(mode="before")
    @classmethod
    def _mode_alone(cls, value: Any) -> Any:
        return {"mode": value} if isinstance(value, str) else value


class PrivacyConfig(_Said):
    """Private data in what models are asked."""

    mode: Mode = "none"
    kinds: tuple[Kind, ...] = ("phone", "id_number", "bank_card", "email")
    patterns: dict[Name, Pattern] = Field(default_factory=dict)
    fields: dict[Name, tuple[NonEmpty, ...]] = Field(default_factory=dict)
    exempt_backends: tuple[Name, ...] = ()
    id_numbers: tuple[IdNumber, ...] = ("cn.ric",)
    phone_regions: tuple[Region, ...] = ("CN", "US", "GB")
    keep_days: float = Field(default=14, gt=0)


class RoutePrivacy(_Said):
    """What a route says instead; whatever it leaves out is the gateway's."""

    mode: Mode | None = None
    kinds: tuple[Kind, ...] | None = None
    patterns: dict[Name, Pattern] | None = None
    fields: dict[Name, tuple[NonEmpty, ...]] | None = None
    exempt_backends: tuple[Name, ...] | None = None

    def over(self, base: PrivacyConfig) -> PrivacyConfig:
        """The gateway's section with what this one says laid over it; patterns and fields are added."""
        said = {name: getattr(self, name) for name in self.model_fields_set if getattr(self, name) is not None}
        for name in ("patterns", "fields"):
            if name in said:
                said[name] = {**getattr(base, name), **said[name]}
        return base.model_copy(update=said)
