"""Delete an order through the gateway, with OpenAI's Python SDK as it is: ask, approve, go on.

    python examples/approvals/approve.py http://127.0.0.1:8080/v1

The approval is given as an approver would at a terminal: `hermes-gateway approvals approve ID --code CODE`.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam


def main(base_url: str, command: str, question: str) -> None:
    """Go all the way once."""
    client = OpenAI(base_url=base_url, api_key="any")
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    pending = client.chat.completions.create(model="auto", messages=messages).choices[0].message.content or ""
    print(pending)

    found = re.search(r"apr_[0-9a-f]{24}", pending)
    if found is None:
        sys.exit("nothing waits for approval")
    shown = approvals(command, "show", found[0])
    approved = approvals(command, "approve", found[0], "--code", shown["code"], "--reason", "asked for by phone")
    print(f"{found[0]} is {approved['status']}, by {approved['decided_by']}")

    messages += [{"role": "assistant", "content": pending}, {"role": "user", "content": "go on"}]
    answer = client.chat.completions.create(model="auto", messages=messages)
    print(answer.choices[0].message.content)


def approvals(command: str, *words: str) -> Any:
    """What `hermes-gateway approvals` says."""
    done = subprocess.run(  # noqa: S603 - the program named on the command line
        [*shlex.split(command), "approvals", *words, "--json"], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        arguments[0] if arguments else "http://127.0.0.1:8080/v1",
        arguments[1] if len(arguments) > 1 else "hermes-gateway",
        arguments[2] if len(arguments) > 2 else "delete the order SO-2024-0402",
    )
