"""Who is told of what."""

from __future__ import annotations

from gateway.config.models import LogConfig
from gateway.observe.audience import Audience, Choosy
from gateway.observe.events import Recorder
from gateway.observe.logging import LogSubscriber
from tests.clocks import HandClock


class Told:
    def __init__(self, names: list[str], name: str) -> None:
        self._names, self._name = names, name

    def finished(self, _: Recorder) -> None:
        self._names.append(self._name)


class Picky(Told):
    wants_answered = False


def tell(audience: Audience, names: list[str]) -> tuple[list[str], list[str]]:
    """Who is told of any trace, and who of an answered turn's."""
    told = []
    for whom in (audience.of_all, audience.of_answered):
        names.clear()
        for finished in whom:
            finished(Recorder("a" * 32, "app", HandClock()))
        told.append([*names])
    return told[0], told[1]


def test_those_who_do_not_care_are_not_told_of_answers_until_they_do() -> None:
    names: list[str] = []
    picky = Picky(names, "picky")
    audience = Audience((Told(names, "first"), picky, Told(names, "last")))
    assert tell(audience, names) == (["first", "picky", "last"], ["first", "last"])
    picky.wants_answered = True
    audience.settle()
    assert tell(audience, names) == (["first", "picky", "last"], ["first", "picky", "last"])


def test_the_log_wants_answered_turns_where_every_request_is_a_line() -> None:
    log = LogSubscriber(LogConfig())
    assert isinstance(log, Choosy)
    assert not log.wants_answered
    log.configure(LogConfig(requests=True))
    assert log.wants_answered
