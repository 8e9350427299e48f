"""What is counted about runs in this process."""

from __future__ import annotations

from typing import Protocol


class RunsTally(Protocol):
    """Takes counts. Must return fast and never raise."""

    def begun(self, waited_s: float) -> None:
        """A run was begun, this long after it was due."""
        ...

    def ended(self, status: str, total_s: float) -> None:
        """A run ended as `completed`, `failed`, `cancelled` or `dead`, this long after it was asked for."""
        ...

    def dropped(self) -> None:
        """A message was dropped that is no run's."""
        ...


class NoTally:
    """Counts nothing."""

    def begun(self, waited_s: float) -> None:
        """Nothing."""

    def ended(self, status: str, total_s: float) -> None:
        """Nothing."""

    def dropped(self) -> None:
        """Nothing."""
