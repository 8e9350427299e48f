"""Whether the thresholds in `routes/calibration.json` belong to the utterances and encoders at hand.

Pure, and without numpy: it is asked before anything is encoded. Does not know how thresholds are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from gateway.config.calibration import CalibrationFile, EncoderCalibration

# The rule that gives scores. Raise it with every change of `scoring.py`, `centres.py`, `head.py`, `pieces.py` or of a
# packaged encoder that moves scores: thresholds that were fitted before are stale then.
SCORING: Final = 1


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Where thresholds come from.

    Attributes:
        state: `none`: there is no file, or nothing to compare. `fresh`: the file's numbers are used. `stale`: it is there and
            is not used, for one encoder at least.
        reason: why it is stale; empty otherwise.
        used: what is used of the file, by encoder. For all others thresholds are found from the utterances.
        keys: digest of what each encoder reads of the utterances.
    """

    state: Literal["none", "fresh", "stale"] = "none"
    reason: str = ""
    used: Mapping[str, EncoderCalibration] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """Where thresholds come from, as explanations say it."""
        if self.state == "stale":
            return f"from the utterances: the calibration is stale ({self.reason})"
        return "from the calibration" if self.state == "fresh" else "from the utterances"


def calibrated(file: CalibrationFile | None, keys: Mapping[str, str]) -> Calibrated:
    """Hold a file against the digests of what encoders read of the utterances now, by encoder."""
    if file is None or not keys:
        return Calibrated(keys=keys)
    if file.scoring != SCORING:
        return Calibrated("stale", "it was made for other scores than this program gives", keys=keys)
    used = {name: found for name, key in keys.items() if (found := file.encoders.get(name)) and found.utterances == key}
    reasons = [
        f"the utterances that {name!r} reads have changed"
        if name in file.encoders
        else f"it holds nothing for the encoder {name!r}, but for {_names(file.encoders)}"
        for name in sorted(keys)
        if name not in used
    ]
    return Calibrated("stale" if reasons else "fresh", "; ".join(reasons), used, keys)


def _names(encoders: Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in sorted(encoders)) or "none"
