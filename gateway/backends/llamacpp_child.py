"""The process a local model runs in: llama.cpp's server on a port of this machine.

Run as a program by `llamacpp_process.py`, which writes one line of JSON to its input: where the model is and how it is
loaded. Answers with one line, the address or what went wrong, and serves until its input ends: so it never outlives the
gateway, however that ends. Imports nothing of the gateway.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> int:
    """Load, tell where, serve; the exit code."""
    asked: dict[str, Any] = json.loads(sys.stdin.readline())
    # Whatever the library prints goes to the error stream: the output is for the one line alone.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        server = _serve(asked)
        print(json.dumps({"url": server.listening_address}), file=told, flush=True)
    except Exception as error:  # noqa: BLE001  # the outermost: whatever it is, the gateway has to be told
        print(json.dumps({"error": str(error) or type(error).__name__}), file=told, flush=True)
        return 1
    sys.stdin.read()
    # The server's own threads may be in the middle of an answer nobody waits for.
    os._exit(0)


def _serve(asked: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = asked["path"]
    params.model_alias = {asked["model"]} if isinstance(params.model_alias, set) else [asked["model"]]
    params.n_parallel = asked["slots"]
    # The context is shared out among the slots.
    params.n_ctx = asked["context_tokens"] * asked["slots"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked["threads"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [asked["key"]]
    params.ui = False
    params.use_jinja = True
    params.verbosity = 0
    return xllamacpp.Server(params)


if __name__ == "__main__":
    sys.exit(main())
