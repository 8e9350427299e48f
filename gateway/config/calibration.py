"""`routes/calibration.json`: thresholds and margins that were fitted once, and what they were fitted on.

Knows the file's form, there and back. Does not know whether its numbers still belong to the utterances
(`routing/calibrated.py`), nor how they are found.
"""

from __future__ import annotations

import json
from typing import Final

from pydantic import Field

from gateway.config.document import read_document
from gateway.config.models import Margin, Score
from gateway.config.section import NonEmpty, Section
from gateway.config.validation import validate
from gateway.config.variables import Variables
from gateway.errors import Problem


class EncoderCalibration(Section):
    """What holds for texts that one encoder reads.

    Attributes:
        utterances: digest of the encoder's name, the routes and those of their utterances that it reads.
        lines: how many labelled lines counted beside them.
        kept: share of the utterances that reach their own route with these numbers, in 0..1; None if none could be judged.
        threshold: score a text has to reach for a route without a threshold of its own.
        margin: how far ahead of the second route the best one must be.
        thresholds: by route.
    """

    utterances: NonEmpty
    lines: int = Field(default=0, ge=0)
    kept: float | None = Field(default=None, ge=0, le=1)
    threshold: Score
    margin: Margin
    thresholds: dict[NonEmpty, Score] = Field(default_factory=dict)


class CalibrationFile(Section):
    """The whole file.

    Attributes:
        scoring: number of the rule that gives scores; those of another one are not comparable.
        labelled: digest of the labelled lines it was fitted on; None where there were none.
        encoders: by name.
    """

    scoring: int
    labelled: str | None = None
    encoders: dict[NonEmpty, EncoderCalibration]


# Numbers of this many digits are as exact as anything that was fitted.
_DIGITS: Final = 4


def read_calibration(file: str, content: bytes, problems: list[Problem]) -> CalibrationFile | None:
    """The file's content, or None with every mistake added to `problems`."""
    before = len(problems)
    try:
        json.loads(content.decode("utf-8"))
    except json.JSONDecodeError as error:
        problems.append(Problem(file, error.lineno, f"not valid JSON: {error.msg}"))
    except (UnicodeDecodeError, RecursionError):
        problems.append(Problem(file, 0, "not valid JSON: it is not UTF-8 text, or too deep"))
    if len(problems) > before:
        return None
    # JSON is YAML, whose reader knows the line of every value and of keys that stand twice.
    document = read_document(file, content, Variables({}), problems)
    if document is None or len(problems) > before:
        return None
    return validate(CalibrationFile, document, problems)


def written(calibration: CalibrationFile) -> str:
    """The file's text: the same for the same numbers, one line a number, so that changes can be reviewed."""
    return json.dumps(_rounded(calibration.model_dump()), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return round(value, _DIGITS) if isinstance(value, float) else value
