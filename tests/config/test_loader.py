"""Files and environment in, one proved bundle or every problem out."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config import files
from gateway.config.bundle import Bundle
from gateway.config.loader import load, load_files
from gateway.config.names import fallback_order
from gateway.errors import ConfigError, Problem
from gateway.observe.redaction import secrets_of
from gateway.settings import Settings

GATEWAY = """\
backends:
  demo: {provider: demo}
  small: {provider: openai, base_url: "http://127.0.0.1:1/v1", model: m}
models:
  demo: {backends: [demo]}
  fast: {backends: [small, demo]}
aliases: {gpt-4o: fast}
router: {default: fast}
"""
ROUTE = "route: orders\nmodel: fast\nkeywords: [订单]\n"


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "routes").mkdir()
    (tmp_path / "gateway.yaml").write_text(GATEWAY)


def write(name: str, text: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def loaded(**variables: str) -> Bundle:
    settings = Settings.model_validate({**variables, "variables": variables})
    return load(Path("gateway.yaml"), Path("routes"), settings)


def refused(**variables: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(**variables)
    return [str(problem) for problem in caught.value.problems]


def test_a_good_set_of_files_is_one_bundle() -> None:
    write("routes/orders.yaml", ROUTE)
    write("routes/more/law.yaml", "route: law\nmodel: gpt-4o\nkeywords: [law]\n")
    bundle = loaded()
    assert [route.route for route in bundle.routes] == ["law", "orders"]
    assert bundle.config.router.default == "fast"
    assert len(bundle.digest) == 64


def test_every_problem_of_every_file_is_told_at_once() -> None:
    write("gateway.yaml", GATEWAY + "runs: {join_timeout_s: 1}\nserver: {prot: 1, port: x}\n")
    write("routes/a.yaml", "route: a\nmodel: fast\nkeyword: [x]\n")
    write("routes/b.yaml", "route: b\nmodel: nope\nkeywords: [x]\n")
    write("routes/c.yaml", "route: c\n  model: [\n")
    found = refused()
    assert found[:3] == [
        "gateway.yaml:9: `runs.join_timeout_s` is not supported by this version",
        "gateway.yaml:10: `server.port` must be a whole number, not 'x'",
        "gateway.yaml:10: unknown key `server.prot`; did you mean `port`?",
    ]
    assert found[3] == "routes/a.yaml:3: unknown key `keyword`; did you mean `keywords`?"
    assert found[-1].startswith("routes/c.yaml:2: ")


def test_a_route_to_a_missing_model_is_named_with_its_place() -> None:
    write("routes/orders.yaml", "route: orders\nkeywords: [x]\nmodel: fats\n")
    assert refused() == [
        "routes/orders.yaml:3: the route `orders` names no model: there is no `fats`; did you mean `fast`?"
    ]


def test_two_files_with_one_route_name_both_places() -> None:
    write("routes/a.yaml", "# first\nroute: orders\nmodel: fast\nkeywords: [x]\n")
    write("routes/b.yaml", ROUTE)
    assert refused() == ["routes/b.yaml:1: the route `orders` stands in two files; first at routes/a.yaml:2"]


@pytest.mark.parametrize("word", ["no", "on", "08", "1e3", "true", "0x1F", "1.50"])
def test_an_unquoted_name_stays_the_text_it_is(word: str) -> None:
    write("gateway.yaml", GATEWAY.replace("fast:", f"{word}:").replace("fast", word))
    write("routes/orders.yaml", f"route: {word}\nmodel: {word}\nkeywords: [{word}, 12:30]\ntools: [{word}]\n")
    (route,) = loaded().routes
    assert (route.route, route.model, route.keywords, route.tools) == (word, word, (word, "12:30"), (word,))


def test_params_keep_their_types() -> None:
    write("routes/orders.yaml", ROUTE + "params: {temperature: 0, stop: ['08'], seed: 08, logprobs: off}\n")
    assert loaded().routes[0].params == {"temperature": 0, "stop": ["08"], "seed": 8, "logprobs": "off"}


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("router: {default: nope}", "`router.default` names no model: there is no `nope`"),
        (
            "router: {default: fast, model: demo}",
            "`router.model` is `demo`, which is the name of a model or an alias too",
        ),
        (
            "router: {default: fast, model: gpt-4o}",
            "`router.model` is `gpt-4o`, which is the name of a model or an alias too",
        ),
        (
            "router: {default: fast, semantic: {threshold: high}}",
            "`router.semantic.threshold` must be a number or `auto`, not 'high'",
        ),
        (
            "router: {default: fast, semantic: {threshold: true}}",
            "`router.semantic.threshold` must be a number or `auto`, not true",
        ),
        (
            "router: {default: fast, semantic: {threshold: 28}}",
            "`router.semantic.threshold` must be at most 1 or `auto`, not 28",
        ),
        (
            "router: {default: fast, semantic: {margin: -0.1}}",
            "`router.semantic.margin` must be at least 0 or `auto`, not -0.1",
        ),
        (
            "router: {default: fast, semantic: {timeout_ms: true}}",
            "`router.semantic.timeout_ms` must be a number, not true",
        ),
        (
            "router: {default: fast, semantic: {timeout_ms: .inf}}",
            "`router.semantic.timeout_ms` must be a finite number, not .inf",
        ),
        (
            "router: {default: fast, semantic: {encoder: {model: e}}}",
            "`router.semantic.encoder.base_url` is missing",
        ),
        (
            "router: {default: fast, semantic: {encoder: {base_url: 'ftp://secret.example', model: e}}}",
            "`router.semantic.encoder.base_url`: it must start with http:// or https://",
        ),
        (
            "router: {default: fast, semantic: {encoder: {base_url: 'http://x/v1', modle: e, model: f}}}",
            "unknown key `router.semantic.encoder.modle`; did you mean `model`?",
        ),
        (
            "router: {default: fast, semantic: {encoder: {base_url: 'http://x/v1', model: e, api_key: [s3cret]}}}",
            "`router.semantic.encoder.api_key` must be text",
        ),
        (
            "router: {default: fast, semantic: {encoder: [auto]}}",
            "`router.semantic.encoder` must be a mapping (`key: value` lines) or text",
        ),
        ("router: {default: fast, sticky: 3}", "`router.sticky` must be `true` or `false`, not 3"),
        ("router: {}", "`router.default` is missing"),
        ("router:", "`router` is empty; give it a value or leave it out"),
        ("router: [x]", "`router` must be a mapping (`key: value` lines)"),
        (
            "router: {default: 'a b'}",
            "`router.default` must be a name (1 to 64 letters, digits or `. _ / : -`, beginning with a letter or a digit), not 'a b'",
        ),
    ],
)
def test_a_mistake_in_the_router_is_told_in_plain_words(section: str, problem: str) -> None:
    write("gateway.yaml", GATEWAY.replace("router: {default: fast}", section))
    assert refused()[0] == f"gateway.yaml:8: {problem}"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("aliases: {demo: fast}", "the alias `demo` is the name of a model too"),
        ("aliases: {x: nope}", "the alias `x` names no model: there is no `nope`"),
        ("aliases: {x: fsat}", "the alias `x` names no model: there is no `fsat`; did you mean `fast`?"),
        (
            "aliases: {'x y': fast}",
            "'x y' is not a name; a name is 1 to 64 letters, digits or `. _ / : -`, beginning with a letter or a digit",
        ),
    ],
)
def test_an_alias_stands_for_a_model_and_is_none(line: str, problem: str) -> None:
    write("gateway.yaml", GATEWAY.replace("aliases: {gpt-4o: fast}", line))
    assert refused()[0] == f"gateway.yaml:7: {problem}"


@pytest.mark.parametrize(
    ("backend", "problem"),
    [
        ("{provider: openai}", "`backends.small`: `model` is missing: the name of the model at this backend"),
        ("{model: m}", "`backends.small.provider` is missing"),
        ("{provider: opnai, model: m}", "`backends.small.provider`: unknown provider 'opnai'; did you mean `openai`?"),
        ("{provider: plugin}", "`backends.small`: a backend with `provider: plugin` needs `module`"),
        (
            "{provider: openai, model: m, base_url: ftp://x}",
            "`backends.small`: `base_url` must start with http:// or https://",
        ),
        (
            "{provider: openai, model: m, api_key: a, api_keys: [b]}",
            "`backends.small`: `api_key` and `api_keys` exclude each other",
        ),
        (
            "{provider: openai, model: m, capabilities: {streaming: true}}",
            "`backends.small.capabilities.streaming` is not supported by this version",
        ),
        (
            "{provider: openai, model: m, dialct: openai}",
            "unknown key `backends.small.dialct`; did you mean `dialect`?",
        ),
        (
            "{provider: openai, model: m, price: cheap}",
            "`backends.small.price` must be a mapping (`key: value` lines) or `free`, not 'cheap'",
        ),
        ("{provider: openai, model: m, timeout_s: 0}", "`backends.small.timeout_s` must be greater than 0, not 0"),
        (
            '{provider: openai, model: m, api_key: "${KEY:-}"}',
            "`backends.small.api_key` must not be empty; leave it out, or give it a value",
        ),
        ("{provider: openai, model: m, api_key: ${KEY:-}}", None),
        (
            '{provider: openai, model: m, api_key: "${KEY}"}',
            "the variable KEY is not set; set it, or give a default: `${KEY:-...}`",
        ),
    ],
)
def test_a_mistake_in_a_backend_is_told_in_plain_words(backend: str, problem: str | None) -> None:
    lines = GATEWAY.splitlines()
    lines[2] = f"  small: {backend}"
    write("gateway.yaml", "\n".join(lines))
    found = refused()
    assert len(found) == 1
    if problem is not None:
        assert found == [f"gateway.yaml:3: {problem}"]


def test_a_model_names_backends_that_exist() -> None:
    write("gateway.yaml", GATEWAY.replace("[small, demo]", "[small, {name: demo, weight: -1}]"))
    assert refused() == ["gateway.yaml:6: `models.fast.backends[1].weight` must be at least 0, not -1"]
    write("gateway.yaml", GATEWAY.replace("[small, demo]", "[demo, smal]"))
    assert refused() == ["gateway.yaml:6: there is no backend `smal`; did you mean `small`?"]


MODELS = """backends:
  small: {provider: openai, model: m}
  any: {provider: openai, model: "x-*"}
router: {default: a}
"""


@pytest.mark.parametrize(
    ("models", "messages"),
    [
        (
            "  a: {backends: [small], fallbacks: [b]}\n  b: {backends: [small], fallbacks: [a]}\n",
            ["gateway.yaml:6: the fallbacks of `a` lead back to it (a cycle): a -> b -> a"],
        ),
        (
            "  a: {backends: [small], fallbacks: [a]}\n",
            ["gateway.yaml:6: the fallbacks of `a` lead back to it (a cycle): a -> a"],
        ),
        (
            "  a: {backends: [small], fallbacks: [b]}\n  b: {backends: [small], fallbacks: [other]}\naliases: {other: b}\n",
            ["gateway.yaml:7: the fallbacks of `b` lead back to it (a cycle): b -> b"],
        ),
        (
            "  a: {backends: [small], fallbacks: [bb]}\n  b: {backends: [small]}\n",
            ["gateway.yaml:6: there is no model `bb` to fall back to; did you mean `b`?"],
        ),
        (
            "  a: {backends: [small], tool_model: aa, answer_model: b, escalate: bb}\n  b: {backends: [small]}\n",
            [
                "gateway.yaml:6: there is no model `aa`; did you mean `a`?",
                "gateway.yaml:6: there is no model `bb`; did you mean `b`?",
            ],
        ),
        (
            "  a: {backends: [small, any]}\n",
            ["gateway.yaml:6: the backend `any` has a `*` in its model, and the model `a` has none to fill it"],
        ),
        (
            "  a: {backends: [small]}\n  'x*y*': {backends: [any]}\n",
            ["gateway.yaml:7: the name `x*y*` may hold one `*` only"],
        ),
        (
            "  a: {backends: [small]}\n  'x/*': {backends: [any]}\naliases: {good: x/big, bad: x/}\n",
            ["gateway.yaml:8: the alias `bad` names no model: there is no `x/`; did you mean `x/*`?"],
        ),
    ],
)
def test_fallbacks_and_wildcards_that_lead_nowhere_are_told_B010(models: str, messages: list[str]) -> None:
    write("gateway.yaml", MODELS + "models:\n" + models)
    assert refused() == messages


def test_diamonds_of_fallbacks_are_no_cycle() -> None:
    write(
        "gateway.yaml",
        MODELS
        + "models:\n  a: {backends: [small], fallbacks: [b, c]}\n  b: {backends: [small], fallbacks: [d]}\n"
        + "  c: {backends: [small], fallbacks: [d]}\n  d: {backends: [small]}\n",
    )
    config = loaded().config
    assert fallback_order("a", config.models, config.aliases) == ("a", "b", "d", "c")


def test_no_secret_is_in_a_message_or_in_the_bundles_text() -> None:
    write("gateway.yaml", GATEWAY + "keys: {admin_key: {a: tell-nobody}, static: {app: {key: [tell-nobody]}}}\n")
    assert "tell-nobody" not in "\n".join(refused())
    write("gateway.yaml", GATEWAY + "server: {port: '${X}'}\n")
    assert "tell-nobody" not in "\n".join(refused(X="tell-nobody"))
    assert "tell-nobody" not in "\n".join(refused(X="1", BASE_URL="tell-nobody", MODEL_NAME="m"))
    write("gateway.yaml", GATEWAY + "keys: {admin_key: tell-nobody, static: {app: {key: tell-nobody-either}}}\n")
    assert "tell-nobody" not in repr(loaded())


@pytest.mark.parametrize("name", ["admin", "local", "a/b"])
def test_a_key_cannot_take_the_name_of_another_owner(name: str) -> None:
    write("gateway.yaml", GATEWAY + f"keys: {{static: {{{name}: {{key: x}}}}}}\n")
    assert f"must not be named `{name}`" in refused()[0]


def test_two_keys_of_one_value_are_refused() -> None:
    write(
        "gateway.yaml",
        GATEWAY + "keys:\n  admin_key: x\n  static:\n    a: {key: x}\n    b: {key: y}\n    c: {key: y}\n",
    )
    assert [line.partition(": the keys ")[0] for line in refused()] == ["gateway.yaml:12", "gateway.yaml:14"]


def test_a_route_that_nothing_leads_to_is_refused() -> None:
    write("routes/orders.yaml", "route: orders\nmodel: fast\n")
    assert "a route needs `keywords`" in refused()[0]


@pytest.mark.parametrize("content", ["", "# all gone\n", "backends:\n  demo: {provider", GATEWAY[:120], "\x00\x00"])
def test_a_truncated_file_is_refused_and_never_half_a_table(content: str) -> None:
    write("gateway.yaml", content)
    assert all(line.startswith("gateway.yaml:") for line in refused())


@pytest.mark.parametrize(
    "content", ["", "route: ord", "route: orders\nmodel: fa", "route: orders\nmodel: fast\nkeywords: [订"]
)
def test_a_truncated_route_is_refused_and_never_left_out(content: str) -> None:
    write("routes/law.yaml", "route: law\nmodel: fast\nkeywords: [law]\n")
    write("routes/orders.yaml", content)
    assert all(line.startswith("routes/orders.yaml:") for line in refused())


def test_a_deleted_file_or_folder_is_refused() -> None:
    Path("gateway.yaml").unlink()
    Path("routes").rmdir()
    assert refused() == [
        "gateway.yaml:0: there is no such file",
        "routes:0: there is no such folder; it holds the routes",
    ]


def test_a_folder_in_the_files_place_is_refused() -> None:
    Path("gateway.yaml").unlink()
    Path("gateway.yaml").mkdir()
    assert refused()[0].startswith("gateway.yaml:0: cannot be read")


@pytest.mark.parametrize("name", ["orders.yml", "orders.YAML", "orders.Yml"])
def test_a_route_file_that_would_not_be_read_is_refused(name: str) -> None:
    write(f"routes/{name}", ROUTE)
    assert "rename it" in refused()[0]


def test_a_linked_folder_of_routes_is_read_once_wherever_links_lead() -> None:
    write("elsewhere/team/orders.yaml", ROUTE)
    Path("routes/linked").symlink_to(Path("elsewhere").absolute())
    Path("elsewhere/team/back").symlink_to(Path("routes").absolute())
    Path("routes/self").symlink_to(".")
    assert [route.route for route in loaded().routes] == ["orders"]


def test_a_folder_that_cannot_be_read_does_not_take_its_routes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    write("routes/team/orders.yaml", ROUTE)
    scan = os.scandir

    def guarded(path: str) -> Any:
        if str(path).endswith("team"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert refused() == ["routes/team:0: cannot be read: Permission denied"]


@pytest.mark.parametrize("name", ["routes/orders.yaml", "routes/calibration.json", "routes/eval.jsonl", "gateway.yaml"])
def test_a_pipe_in_a_files_place_is_refused_and_never_waited_for(name: str) -> None:
    Path(name).unlink(missing_ok=True)
    os.mkfifo(name)
    assert refused() == [f"{name}:0: cannot be read: it is no regular file"]


@pytest.mark.parametrize("name", ["routes/calibration.json", "routes/eval.jsonl"])
def test_a_link_to_nowhere_is_no_missing_file(name: str) -> None:
    Path(name).symlink_to("nowhere")
    assert refused() == [f"{name}:0: there is no such file"]
    Path(name).unlink()
    Path(name).mkdir()
    assert refused() == [f"{name}:0: cannot be read: Is a directory"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("priority: true", "`priority` must be a whole number, not true"),
        ("max_rounds: false", "`max_rounds` must be a whole number, not false"),
        ("utterances: [a]\nthreshold: {value: true, encoder: auto}", "`threshold.value` must be a number, not true"),
        ("utterances: [a]\nthreshold: {value: 28, encoder: auto}", "`threshold.value` must be at most 1, not 28"),
        (
            "threshold: {value: 0.5, encoder: auto}",
            "`threshold` needs `utterances`: it is the score that they have to reach",
        ),
    ],
)
def test_a_number_that_can_mean_nothing_in_a_route_is_refused(line: str, problem: str) -> None:
    write("routes/orders.yaml", ROUTE + line + "\n")
    assert [each.partition(": ")[2] for each in refused()] == [problem]


def test_editors_leavings_are_no_routes() -> None:
    write("routes/.orders.yaml.swp", "x")
    write("routes/.#orders.yaml", "x")
    write("routes/orders.yaml~", "x")
    write("routes/.git/orders.yaml", "x")
    write("routes/README.md", "x")
    assert loaded().routes == ()


def _replace_while_reading(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Both routes are replaced right after the first of them was read, `times` times."""
    read = files._content
    done = 0

    def content(path: Path, problems: list[Problem]) -> bytes | None:
        nonlocal done
        found = read(path, problems)
        if path.name == "a.yaml" and done < times:
            done += 1
            for name in "ab":
                write(f"routes/{name}.yaml", f"route: {name}\nmodel: fast\nkeywords: [{'new' * done}]\n")
        return found

    monkeypatch.setattr(files, "_content", content)


def test_files_that_change_while_they_are_read_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        write(f"routes/{name}.yaml", f"route: {name}\nmodel: fast\nkeywords: [old]\n")
    _replace_while_reading(monkeypatch, times=2)
    assert [route.keywords for route in loaded().routes] == [("newnew",), ("newnew",)]


def test_files_that_never_stand_still_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        write(f"routes/{name}.yaml", f"route: {name}\nmodel: fast\nkeywords: [old]\n")
    _replace_while_reading(monkeypatch, times=1000)
    assert refused() == ["gateway.yaml:0: the files keep changing while they are read; try again"]


def test_paths_outside_the_working_directory_are_shown_whole(tmp_path: Path) -> None:
    os.chdir(tmp_path / "routes")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "none.yaml", None, Settings())
    assert caught.value.problems == (Problem((tmp_path / "none.yaml").as_posix(), 0, "there is no such file"),)


def test_the_environment_wins_over_the_file() -> None:
    write("gateway.yaml", GATEWAY + "server: {port: 1}\ntools: {max_rounds: 9}\n")
    config = loaded(PORT="2", MAX_TOOL_ROUNDS="0", TOOL_TIMEOUT="3", DATABASE_URL="sqlite:///y.db").config
    assert (config.server.port, config.tools.max_rounds, config.tools.timeout_s) == (2, 0, 3)
    assert config.storage.database == "sqlite:///y.db"


def test_another_database_is_refused_without_showing_the_url() -> None:
    (found,) = refused(DATABASE_URL="mysql://u:tell-nobody@h/d")
    assert found.startswith("environment:0: DATABASE_URL: ")
    assert "tell-nobody" not in found


def test_base_url_and_model_name_make_the_default_model() -> None:
    write("routes/orders.yaml", ROUTE)
    write("routes/demo.yaml", "route: demo\nmodel: demo\nkeywords: [demo]\n")
    bundle = loaded(BASE_URL="http://127.0.0.1:9/v1", MODEL_NAME="qwen2.5:7b", API_KEY="k")
    config = bundle.config
    assert config.router.default == "qwen2.5:7b"
    assert [member.name for member in config.models["qwen2.5:7b"].backends] == ["env"]
    backend = config.backends["env"]
    assert (backend.provider, backend.base_url, backend.model, backend.api_key) == (
        "openai",
        "http://127.0.0.1:9/v1",
        "qwen2.5:7b",
        "k",
    )
    # What led to the demo leads to the real model; what was chosen on purpose stays.
    assert {route.route: route.model for route in bundle.routes} == {"demo": "qwen2.5:7b", "orders": "fast"}


@pytest.mark.parametrize("name", ["meta llama/3", "fast", "gpt-4o", "auto", "@cf/x"])
def test_a_model_name_that_is_taken_or_no_name_is_called_env(name: str) -> None:
    config = loaded(BASE_URL="http://127.0.0.1:9/v1", MODEL_NAME=name).config
    assert config.router.default == "env"
    assert config.backends["env"].model == name


def test_the_environment_alone_needs_no_backends_in_the_file() -> None:
    write("gateway.yaml", "server: {port: 1}\n")
    assert loaded(BASE_URL="http://127.0.0.1:9/v1", MODEL_NAME="m").config.router.default == "m"


def test_the_digest_follows_what_decides_and_no_secret() -> None:
    write("gateway.yaml", GATEWAY + 'keys: {static: {app: {key: "${KEY}"}}}\n')
    first = loaded(KEY="one", GATEWAY_ADMIN_KEY="a")
    again = loaded(KEY="two", GATEWAY_ADMIN_KEY="b")
    assert again.digest == first.digest
    assert again.config != first.config
    digests = {first.digest, loaded(KEY="one").digest, loaded(KEY="one", TOOL_TIMEOUT="2").digest}
    # Where a replica listens and keeps its records is its own affair: it decides nothing.
    own = loaded(KEY="one", PORT="2", DATABASE_URL="sqlite:///other.db", REDIS_URL="redis://127.0.0.1:1")
    digests.add(own.digest)
    write("routes/orders.yaml", ROUTE)
    digests.add(loaded(KEY="one").digest)
    write("routes/calibration.json", '{"scoring": 1, "encoders": {}}')
    digests.add(loaded(KEY="one").digest)
    write("routes/eval.jsonl", '{"text": "a", "route": null}')
    digests.add(loaded(KEY="one").digest)
    assert len(digests) == 6


def test_the_digest_follows_the_encoder_s_model_and_no_secret_of_it() -> None:
    remote = (
        "router: {default: fast, semantic: {encoder: "
        '{base_url: "${URL}", model: "${MODEL}", api_key: "${KEY}", headers: {x-team: "${KEY}"}}}}'
    )
    write("gateway.yaml", GATEWAY.replace("router: {default: fast}", remote))
    first = loaded(URL="http://one/v1?key=k1", MODEL="e", KEY="one")
    again = loaded(URL="http://two/v1?key=k2", MODEL="e", KEY="two")
    assert again.digest == first.digest
    assert again.config != first.config
    assert "k1" not in repr(first.config)
    assert {"k1", "one"} <= set(secrets_of(first.config))
    assert loaded(URL="http://one/v1?key=k1", MODEL="f", KEY="one").digest != first.digest


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(["a", "b", "c", "deep/a", "deep/b"]), st.randoms(use_true_random=False))
def test_routes_are_the_same_whatever_files_they_stand_in(names: list[str], shuffle: random.Random) -> None:
    made = [
        f"route: r{number}\nmodel: fast\nkeywords: [k{number}]\nutterances: [u{number}, v]\n" for number in range(5)
    ]
    shuffle.shuffle(made)
    parsed = {f"routes/{name}.yaml": text.encode() for name, text in zip(names, made, strict=True)}
    bundle = load_files(files.Files("gateway.yaml", GATEWAY.encode(), parsed, None), Settings.model_validate({}))
    assert [route.route for route in bundle.routes] == ["r0", "r1", "r2", "r3", "r4"]
    assert [route.keywords for route in bundle.routes] == [(f"k{number}",) for number in range(5)]


def test_the_digest_knows_no_order_and_no_seam() -> None:
    write("routes/a.yaml", "route: a\nmodel: fast\nkeywords: [x]\n")
    first = loaded().digest
    Path("routes/a.yaml").rename("routes/b.yaml")
    assert loaded().digest != first


def test_missing_tools_are_named_with_their_place() -> None:
    write("gateway.yaml", GATEWAY.replace("[demo]}", "[demo], tools: [clok]}") + "tools: {default: [nope]}\n")
    write("routes/orders.yaml", ROUTE + "tools:\n  - clock\n  - query_ordr\n")
    bundle = loaded()
    assert [str(problem) for problem in bundle.missing_tools({"clock", "query_order"})] == [
        "gateway.yaml:9: there is no tool `nope`",
        "gateway.yaml:5: there is no tool `clok`; did you mean `clock`?",
        "routes/orders.yaml:6: there is no tool `query_ordr`; did you mean `query_order`?",
    ]
    assert bundle.missing_tools({"clock", "clok", "nope", "query_ordr"}) == ()


def test_later_checks_can_name_a_place() -> None:
    write("routes/orders.yaml", ROUTE + "patterns:\n  - '('\n")
    assert str(loaded().route_problem("orders", ("patterns", 0), "not RE2")) == "routes/orders.yaml:5: not RE2"
    assert str(loaded().problem(("backends", "small", "module"), "gone")) == "gateway.yaml:3: gone"


def test_the_shipped_files_are_good() -> None:
    root = Path(__file__).parents[2]
    bundle = load(root / "config" / "gateway.yaml", root / "routes", Settings())
    assert bundle.config.router.default == "demo"
    assert len(bundle.routes) >= 4


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "config" / "examples").glob("*.yaml")), ids=lambda p: p.name
)
def test_every_example_is_good(path: Path) -> None:
    names = (
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "APP_KEY",
        "GATEWAY_ADMIN_KEY",
        "GEMINI_API_KEY",
        "OPENROUTER_API_KEY",
    )
    variables = {name: f"value-of-{name}" for name in names}
    load(path, None, Settings.model_validate({"variables": variables}))


@pytest.mark.parametrize("name", ["model", "messages", "stream", "n", "tools"])
def test_params_cannot_name_what_the_gateway_decides_about(name: str) -> None:
    lines = GATEWAY.splitlines()
    lines[2] = f"  small: {{provider: openai, model: m, params: {{{name}: 1}}}}"
    write("gateway.yaml", "\n".join(lines))
    assert any(f"`{name}` is not a parameter" in problem for problem in refused())


def test_what_replicas_share_has_defaults_and_bounds() -> None:
    config = loaded().config
    assert (config.storage.redis, config.storage.redis_prefix) == (None, "hermes:")
    assert (config.config.watch, config.config.revision) == (False, None)
    assert (config.config.lease_s, config.config.on_lease_loss) == (15, "serve")
    write("gateway.yaml", GATEWAY + "config: {lease_s: 0, on_lease_loss: hope, revision: -1}\n")
    assert {told.split(": ", 1)[1] for told in refused()} == {
        "`config.lease_s` must be at least 1, not 0",
        "`config.on_lease_loss` must be `serve` or `refuse`, not 'hope'",
        "`config.revision` must be at least 0, not -1",
    }


def test_an_address_of_the_shared_server_is_never_shown() -> None:
    write("gateway.yaml", GATEWAY + "storage: {redis: 'http://user:very-secret@cache'}\n")
    (told,) = refused()
    assert "redis://" in told
    assert "very-secret" not in told
    config = loaded(REDIS_URL="rediss://user:very%2Dsecret@elsewhere.example:6379/1").config
    assert "very-secret" in set(secrets_of(config))
    assert "elsewhere" not in repr(config)
