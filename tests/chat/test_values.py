from __future__ import annotations

import gc

from gateway.chat.answer import Answer
from gateway.chat.blocks import Message, Text
from gateway.chat.codecs.chat_completions import decode_request
from gateway.chat.normalise import read_answer
from gateway.chat.usage import Usage


def test_what_a_request_is_made_of_is_none_of_the_garbage_collectors_business() -> None:
    request = decode_request(b'{"model":"auto","messages":[{"role":"user","content":"hi"}]}')
    answer = read_answer(
        b'{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}', str
    )
    assert type(answer) is Answer
    values = [request, *request.messages, *request.messages[0].blocks, answer, answer.message, answer.usage, Usage()]
    values += [Message("user", (Text("hi"),)), Text("hi")]
    assert [value for value in values if gc.is_tracked(value)] == []
