"""National identity numbers, told by their checksums.

Pure. Knows the shapes; whether a number of that shape is one, `python-stdnum` decides.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gateway.security.masking.found import MOST, Found

_BEFORE: Final = r"(?<![0-9A-Za-z_.])"
_AFTER: Final = r"(?![0-9A-Za-z_]|[.][0-9])"

# By the names of stdnum's modules: what a number looks like. Those without a checksum (`us.ssn`) have to be written with their
# separators.
SHAPES: Final[dict[str, str]] = {
    "cn.ric": r"[1-9][0-9]{5}[ -]?(?:18|19|20)[0-9]{2}[ -]?[01][0-9][ -]?[0-3][0-9][ -]?[0-9]{3}[0-9Xx]",
    "br.cpf": r"[0-9]{3}\.?[0-9]{3}\.?[0-9]{3}-?[0-9]{2}",
    "ca.sin": r"[0-9]{3}[ -][0-9]{3}[ -][0-9]{3}",
    "de.idnr": r"[1-9][0-9] ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}",
    "dk.cpr": r"[0-3][0-9][01][0-9]{3}-[0-9]{4}",
    "es.dni": r"[0-9]{8}-?[A-Za-z]",
    "es.nie": r"[XYZxyz]-?[0-9]{7}-?[A-Za-z]",
    "fi.hetu": r"[0-3][0-9][01][0-9]{3}[-+A-FU-Ya-fu-y][0-9]{3}[0-9A-Ya-y]",
    "fr.nir": r"[12][ ]?[0-9]{2}[ ]?[0-9]{2}[ ]?[0-9][0-9AB][ ]?[0-9]{3}[ ]?[0-9]{3}[ ]?[0-9]{2}",
    "in_.aadhaar": r"[2-9][0-9]{3} ?[0-9]{4} ?[0-9]{4}",
    "it.codicefiscale": r"[A-Za-z]{6}[0-9]{2}[A-Za-z][0-9]{2}[A-Za-z][0-9]{3}[A-Za-z]",
    "jp.in_": r"[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{4}",
    "kr.rrn": r"[0-9]{6}-?[1-8][0-9]{6}",
    "nl.bsn": r"[0-9]{9}",
    "pl.pesel": r"[0-9]{11}",
    "se.personnummer": r"(?:19|20)?[0-9]{6}[-+][0-9]{4}",
    "us.ssn": r"[0-9]{3}-[0-9]{2}-[0-9]{4}",
}


class IdNumbers:
    """Finds identity numbers of some countries.

    Args:
        kinds: names of `SHAPES`.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self._sorts: list[tuple[re.Pattern[str], Callable[[str], bool]]] = [
            (re.compile(_BEFORE + SHAPES[kind] + _AFTER), importlib.import_module(f"stdnum.{kind}").is_valid)
            for kind in kinds
        ]

    def find(self, text: str, start: int = 0, end: int = MOST) -> Iterator[Found]:
        """Every identity number of a text in plain form."""
        for shape, is_valid in self._sorts:
            for match in shape.finditer(text, start, end):
                said = match.group().upper()
                if is_valid(said) or is_valid(said.replace(" ", "").replace("-", "")):
                    yield Found(match.start(), match.end(), "id_number")
