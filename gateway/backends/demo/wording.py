"""Puts results and replies into sentences, in the language of the question.

Pure. Every number and text of a result is given as the result has it; nothing is rounded here, and nothing computed but
the day before or after the one a clock tells.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from gateway.backends.demo.chaining import failure_of
from gateway.backends.demo.days import other_day
from gateway.backends.demo.labels import LABELS_ZH, VALUES_ZH
from gateway.backends.demo.request import Done, OfferedTool
from gateway.backends.demo.slots import Slot
from gateway.backends.demo.values import find_values
from gateway.backends.demo.words import Language, concepts, language_of, normalise

_TEXT_LIMIT: Final = 600
_LIST_LIMIT: Final = 20
_MONEY: Final = frozenset({"total", "amount", "price", "subtotal", "balance", "cost"})

NOTE: Final[dict[Language, str]] = {
    "en": (
        "(This is {model}, the gateway's built-in demo backend: rules, not a language model. To add a real model, put this under "
        '`backends:` in config/gateway.yaml: `small: {{provider: openai, base_url: "http://127.0.0.1:11434/v1", model: "qwen2.5:7b"}}` '
        "and name it in `models:`; the README shows Ollama, OpenAI and Anthropic.)"
    ),
    "zh": (
        "（这里是网关内置的演示后端 {model}：只按规则回答，不是语言模型。要接入真实模型，请在 config/gateway.yaml 的 `backends:` 下加一行 "
        '`small: {{provider: openai, base_url: "http://127.0.0.1:11434/v1", model: "qwen2.5:7b"}}`，并写入 `models:`；'
        "README 中有 Ollama、OpenAI 和 Anthropic 的示例。）"
    ),
}


class _Digits(str):
    """A number as the result wrote it."""

    __slots__ = ()


def demo_note(question: str, model: str) -> str:
    """What a first answer says about who is answering."""
    return NOTE[language_of(question)].format(model=model)


def plain_reply(question: str, *, has_media: bool) -> str:
    """A reply without tools: says what was understood, invents nothing."""
    text = question.strip()
    quoted = text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + "…"
    if language_of(question) == "zh":
        media = "我看不到图片，也听不到声音。" if has_media else ""
        return f"{media}收到：“{quoted}”。我没有合适的工具可以回答。" if text else f"{media}你好，请输入一个问题。"
    media = "I cannot see images or hear sound. " if has_media else ""
    return (
        f"{media}You said: “{quoted}”. I have no tool that answers this."
        if text
        else f"{media}Hello, ask me something."
    )


def ask_for(question: str, tool: OfferedTool, missing: Sequence[Slot]) -> str:
    """Asks for what a tool needs and the question did not say."""
    chinese = language_of(question) == "zh"
    named = []
    for slot in missing:
        label = LABELS_ZH.get(slot.name) if chinese else slot.name.replace("_", " ")
        example = (f"（例如 {slot.example}）" if chinese else f" (for example {slot.example})") if slot.example else ""
        named.append(f"{label or slot.name}{example}")
    if chinese:
        return f"请告诉我{'、'.join(named)}，我才能使用 {tool.name}。"
    return f"Please tell me the {' and the '.join(named)}, then I can use {tool.name}."


def leave_out(question: str, parts: Sequence[str]) -> str:
    """Says which parts of a question are not answered."""
    chinese = language_of(question) == "zh"
    named = ("、" if chinese else ", ").join(f"“{part[:_TEXT_LIMIT]}”" for part in parts)
    return f"我没有合适的工具可以回答{named}。" if chinese else f"I have no tool that answers {named}."


def answer_from(question: str, done: Sequence[Done]) -> str:
    """The results of a turn, a line each; what the question asks for comes first in each line."""
    language = language_of(question)
    lines = [_line(question, call, language) for call in done]
    return "\n".join(dict.fromkeys(lines))


def _line(question: str, call: Done, language: Language) -> str:
    subject = _subject(question, call)
    failure = failure_of(call.result)
    if failure is not None:
        about = f" ({subject})" if subject else ""
        if language == "zh":
            return f"{call.name}{f'（{subject}）' if subject else ''} 失败：{failure}"
        return f"{call.name}{about} failed: {failure}"
    value = _read(call.result)
    if subject and _is_computed(question, call):
        outcome = _outcome(value)
        if outcome is not None:
            return f"{subject} = {outcome}"
    if value in (None, "", [], {}):
        nothing = "没有结果" if language == "zh" else "no result"
        return _joined(subject or call.name, nothing, language)
    if isinstance(value, dict):
        if (day := other_day(question, value, language)) is not None:
            return day
        return _joined(_shorter(subject, value), _pairs(value, concepts(question), language), language)
    return _joined(subject, _text(value, language), language)


def _joined(subject: str, text: str, language: Language) -> str:
    if not subject:
        return text
    return f"{subject}：{text}" if language == "zh" else f"{subject}: {text}"


def _shorter(subject: str, value: dict[str, Any]) -> str:
    """Without the subject where the result repeats it in a key of its own."""
    return "" if any(subject and str(inner) == subject for inner in value.values()) else subject


def _subject(question: str, call: Done) -> str:
    """What a call was about: its arguments, an expression in the user's own words."""
    expressions = _expressions(question)
    plain = [argument for argument in call.arguments.values() if isinstance(argument, (str, int, float))]
    return ", ".join(expressions.get(str(argument), str(argument)) for argument in plain if argument != "")


def _expressions(question: str) -> dict[str, str]:
    """The question's expressions: as a calculator takes them, and as the user put them."""
    return {value.value: value.source for value in find_values(normalise(question)) if value.kind == "expression"}


def _is_computed(question: str, call: Done) -> bool:
    return "expression" in call.arguments or not _expressions(question).keys().isdisjoint(
        map(str, call.arguments.values())
    )


def _outcome(value: Any) -> str | None:
    """A calculator's number, bare or under one of the usual keys."""
    if isinstance(value, dict):
        value = next((value[key] for key in ("result", "value", "answer") if key in value), None)
    return str(value).strip() if isinstance(value, str) else None


def _read(text: str) -> Any:
    try:
        value = json.loads(text, parse_float=_Digits, parse_int=_Digits)
    except ValueError:
        return text
    if isinstance(value, dict) and value.get("ok") is True and "result" in value:
        return value["result"]
    return value


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, bool)) or value is None


def _pairs(value: dict[str, Any], asked: frozenset[str], language: Language) -> str:
    keys = sorted(value, key=lambda key: not concepts(str(key)) & asked)
    money = next((key for key in keys if key in _MONEY and _is_scalar(value[key])), None)
    currency = value.get("currency")
    parts = []
    for key in keys:
        if key == "currency" and money is not None:
            continue
        text = _text(value[key], language)
        if key == money and isinstance(currency, str):
            text = f"{text} {currency}"
        parts.append(f"{_label(str(key), language)}{'：' if language == 'zh' else ': '}{text}")
    return ("；" if language == "zh" else "; ").join(parts)


def _label(key: str, language: Language) -> str:
    if language == "zh":
        return LABELS_ZH.get(key.lower(), key.replace("_", " "))
    return key.replace("_", " ")


def _text(value: Any, language: Language) -> str:
    if isinstance(value, dict):
        inner = _pairs(value, frozenset(), language)
        return f"（{inner}）" if language == "zh" else f"({inner})"
    if isinstance(value, list):
        shown = [_text(item, language) for item in value[:_LIST_LIMIT]]
        more = len(value) - len(shown)
        if more:
            shown.append(f"…（另有 {more} 项）" if language == "zh" else f"… ({more} more)")
        return ("、" if language == "zh" else ", ").join(shown) or ("无" if language == "zh" else "none")
    return _scalar(value, language)


def _scalar(value: Any, language: Language) -> str:
    chinese = language == "zh"
    if value is None:
        return "无" if chinese else "none"
    if isinstance(value, bool):
        return ("是" if value else "否") if chinese else ("yes" if value else "no")
    text = str(value).strip()
    if isinstance(value, _Digits):
        return text
    if chinese and text.lower() in VALUES_ZH:
        return f"{VALUES_ZH[text.lower()]}（{text}）"
    return text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT].rstrip() + "…"
