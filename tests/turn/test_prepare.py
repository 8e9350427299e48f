from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest, NoSuchModel
from gateway.security.principal import Principal
from gateway.tools.untrusted import OPERATOR_TEXT
from gateway.turn.prepare import Wishes
from tests.fakes import HandClock, RecordingProvider, ScriptedBackend, spec
from tests.turn.stage import stage


def provider() -> RecordingProvider:
    return RecordingProvider(
        [spec("look"), spec("write", writes=True), spec("secret", allowed_roles=frozenset({"admin"}))]
    )


def names(wire: bytes | None) -> list[str]:
    return [] if wire is None else [tool["function"]["name"] for tool in json.loads(wire)]


async def test_route_s_settings_lie_under_the_client_s() -> None:
    route = {"params": {"temperature": 0, "top_p": 0.5}, "system": "be brief", "max_rounds": 7}
    async with stage(ScriptedBackend(), provider(), route=route) as on:
        turn = await on.prepare(temperature=1)
        assert {name: bytes(raw) for name, raw in turn.fields.items()} == {"temperature": b"1", "top_p": b"0.5"}
        assert (turn.messages[0].role, turn.messages[0].text) == ("system", f"be brief\n\n{OPERATOR_TEXT}")
        assert turn.terms.max_rounds == 7


async def test_tools_are_offered_behind_the_client_s_and_only_allowed_ones() -> None:
    async with stage(ScriptedBackend(), provider()) as on:
        turn = await on.prepare(tools=[{"type": "function", "function": {"name": "mine"}}])
        assert names(turn.tools_wire) == ["mine", "look", "write"]
        assert list(turn.offered) == ["look", "write"]
        assert turn.client_tools == {"mine"}


@pytest.mark.parametrize(
    ("wishes", "more", "offered"),
    [
        (Wishes(tools=frozenset({"look"})), {}, ["look"]),
        (Wishes(tools=frozenset()), {}, []),
        (Wishes(), {"tool_choice": "none"}, []),
        (Wishes(), {"n": 2}, []),
        (Wishes(), {"model": "m"}, []),
    ],
    ids=["narrowed", "none wished", "choice none", "several answers", "explicit model"],
)
async def test_offer_is_narrowed(wishes: Wishes, more: dict[str, Any], offered: list[str]) -> None:
    async with stage(ScriptedBackend(), provider()) as on:
        assert list((await on.prepare(wishes, **more)).offered) == offered


async def test_route_may_force_or_forbid_a_choice() -> None:
    async with stage(ScriptedBackend(), provider(), route={"tool_choice": "required"}) as on:
        assert (await on.prepare()).choice == b'"required"'
        # What some clients send with every request says no more than saying nothing.
        assert (await on.prepare(tool_choice="auto")).choice == b'"required"'
    async with stage(ScriptedBackend(), provider(), route={"tool_choice": "none"}) as on:
        assert (await on.prepare()).offered == {}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "look"}}], ids=["required", "named"]
)
async def test_choice_of_what_is_not_offered_is_refused(choice: Any) -> None:
    async with stage(ScriptedBackend(), provider()) as on:
        with pytest.raises(InvalidRequest) as caught:
            await on.prepare(Wishes(tools=frozenset()), tool_choice=choice)
        assert caught.value.param == "tool_choice"


async def test_client_may_shorten_the_time_but_not_lengthen_it() -> None:
    clock = HandClock()
    async with stage(ScriptedBackend(), turn_timeout_s=10, clock=clock) as on:
        for wished, limit in ((None, 10), (2.5, 2.5), (99, 10)):
            assert (await on.prepare(Wishes(deadline_s=wished))).deadline == clock.monotonic() + limit


async def test_answer_carries_the_name_asked_for_and_the_chosen_model_for_auto() -> None:
    async with stage(ScriptedBackend()) as on:
        assert (await on.prepare(model="auto")).shown_model == "m"
        explicit = await on.prepare(model="m")
        assert (explicit.shown_model, explicit.decision.strategy) == ("m", "explicit")


async def test_name_that_the_key_may_not_use_does_not_exist() -> None:
    async with stage(ScriptedBackend(), principal=Principal("key", models=frozenset({"m"}))) as on:
        await on.prepare(model="m")
        for name in ("auto", "b1", "nothing"):
            with pytest.raises(NoSuchModel):
                await on.prepare(model=name)


async def test_router_sees_text_and_facts() -> None:
    principal = Principal("key", tags=frozenset({"vip"}))
    async with stage(
        ScriptedBackend(), principal=principal, route={"when": {"min_tokens": 1, "has_image": True}}
    ) as on:
        image = {"type": "image_url", "image_url": {"url": "data:"}}
        await on.prepare(
            Wishes(tags=frozenset({"eu"})),
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "translate to"}, image, {"type": "text", "text": "French"}],
                }
            ],
            tools=[{"type": "function", "function": {"name": "mine"}}],
        )
        facts = on.snapshot.router.facts[0]  # type: ignore[attr-defined]
        assert (facts.text, facts.tags, facts.has_tools, facts.has_image) == (
            "translate to\nFrench",
            {"vip", "eu"},
            True,
            True,
        )
        assert facts.tokens > 0


async def test_what_no_route_asks_for_is_not_looked_up() -> None:
    async with stage(ScriptedBackend()) as on:
        await on.prepare()
        assert on.snapshot.router.facts[0].tokens == 0  # type: ignore[attr-defined]
