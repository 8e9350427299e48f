"""The `privacy` section of the gateway's file and of routes: what it takes, and what it refuses with file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.loader import load
from gateway.config.privacy import PrivacyConfig, RoutePrivacy
from gateway.errors import ConfigError
from gateway.security.masking.secret import Secret, read_secret
from gateway.settings import Settings

BASE: dict[str, Any] = {
    "backends": {"local": {"provider": "demo"}},
    "models": {"m": {"backends": ["local"]}},
    "router": {"default": "m"},
}


def loaded(folder: Path, privacy: Any, route: Any = None) -> Any:
    (folder / "gateway.yaml").write_text(yaml.safe_dump({**BASE, "privacy": privacy}, allow_unicode=True))
    (folder / "routes").mkdir()
    if route is not None:
        (folder / "routes" / "r.yaml").write_text(
            yaml.safe_dump({"route": "r", "model": "m", "keywords": ["x"], "privacy": route})
        )
    return load(folder / "gateway.yaml", folder / "routes", Settings())


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"mode": "hide"}, "privacy.mode"),
        ({"kinds": ["phones"]}, "privacy.kinds"),
        ({"patterns": {"a": "(?=x)y"}}, "not one that RE2 takes"),
        ({"patterns": {"a": "(x"}}, "not one that RE2 takes"),
        ({"patterns": {"A b": "x"}}, "is not a name"),
        ({"exempt_backends": ["locl"]}, "there is no backend `locl`; did you mean `local`?"),
        ({"phone_regions": ["China"]}, "privacy.phone_regions"),
        ({"id_numbers": ["xx.yy"]}, "privacy.id_numbers"),
        ({"keep_days": 0}, "privacy.keep_days"),
        ({"mod": "mask"}, "unknown key `privacy.mod`"),
    ],
)
def test_b084_what_cannot_be_is_refused_with_file_and_line(tmp_path: Path, privacy: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, privacy)
    [problem] = caught.value.problems
    assert said in str(problem)
    assert problem.file.endswith("gateway.yaml")
    assert problem.line > 1


def test_a_routes_backend_that_is_not_there_is_told_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, "mask", {"exempt_backends": ["cloud"]})
    [problem] = caught.value.problems
    assert problem.file.endswith("r.yaml")
    assert "there is no backend `cloud`" in str(problem)


def test_a_mode_alone_is_a_section(tmp_path: Path) -> None:
    bundle = loaded(tmp_path, "mask", "block")
    assert bundle.config.privacy == PrivacyConfig(mode="mask")
    assert bundle.routes[0].privacy == RoutePrivacy(mode="block")


def test_a_route_lays_its_words_over_the_gateways() -> None:
    base = PrivacyConfig(mode="mask", kinds=("phone",), patterns={"a": "x"}, exempt_backends=("local",))
    over = RoutePrivacy(patterns={"b": "y"}, exempt_backends=()).over(base)
    assert over == base.model_copy(update={"patterns": {"a": "x", "b": "y"}, "exempt_backends": ()})
    assert RoutePrivacy(mode="none").over(base).mode == "none"


def test_the_secret_is_said_or_kept_beside_the_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'data' / 'x.db'}"
    first, second = read_secret(None, url), read_secret(None, url)
    assert first.minting("a") == second.minting("a") != first.minting("b")
    assert first.minting("a") != first.sealing("a")
    kept = tmp_path / "data" / "x.privacy-key"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in kept.parent.iterdir()] == ["x.privacy-key"]
    assert read_secret("said", url).minting("a") == read_secret("said", "postgresql://h/d").minting("a")
    assert isinstance(read_secret(None, "sqlite://"), Secret)
    kept.write_text("no key")
    with pytest.raises(ConfigError, match="privacy key"):
        read_secret(None, url)


def test_replicas_have_to_be_told() -> None:
    with pytest.raises(ConfigError, match="GATEWAY_PRIVACY_KEY"):
        read_secret(None, "postgresql://host/name")
