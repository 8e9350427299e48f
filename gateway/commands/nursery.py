"""Where the workers of `serve` come from on Linux: a process that has loaded what all of them need, and forks.

What it has loaded, code and weights of encoders, is there once, however many workers there are: pages that nobody writes to
are shared. Knows how to load and how to fork, and that it must have one thread. Does not know what a worker does, nor keep
any: each belongs to the supervisor, which adopts it. Started by `children.py` alone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from typing import Final

# What the workers import sooner or later: they agree over a server, and compare vectors.
import gateway.runs.valkey_queue
import gateway.store.valkey
import gateway.store.valkey_answers
import gateway.store.valkey_counters
import gateway.store.valkey_kept  # noqa: F401
from gateway.commands import serve_worker
from gateway.commands.children import PID_BYTES
from gateway.routing.encoder import EncoderFailed
from gateway.routing.encoders.registry import Encoders

# The number of file descriptors that come with each wish for a worker: its wire, and the socket that all share.
_HANDED: Final = 2


def main(descriptor: int, encoder: str) -> int:
    """Fork a worker whenever the supervisor asks for one, until it is gone; the exit code, in workers too.

    Args:
        descriptor: the supervisor's wire.
        encoder: a packaged encoder that they will ask, or an empty string.
    """
    wire = socket.socket(fileno=descriptor)
    encoders = _loaded(encoder)
    gc.collect()
    gc.freeze()
    while True:
        wish, handed, _, _ = socket.recv_fds(wire, 1, _HANDED)
        if not wish:
            return 0
        channel, listener = handed
        try:
            pid = _forked()
        except OSError:
            return 1
        if pid == 0:
            wire.close()
            return serve_worker.main(channel, listener, encoders)
        os.close(channel)
        os.close(listener)
        wire.sendall(pid.to_bytes(PID_BYTES, "big"))


def _loaded(encoder: str) -> Encoders:
    """The encoders, with the weights of this one. What cannot be loaded is left to the workers, which say so."""
    encoders = Encoders()
    if encoder:
        with contextlib.suppress(EncoderFailed, ImportError):
            # Numpy among others, before there is anything to encode.
            import gateway.routing.index  # noqa: F401

            encoders.read(encoder)
    return encoders


def _forked() -> int:
    """Fork a process whose parent is the supervisor; its id, and 0 in it.

    The one in between ends at once, which makes an orphan of its child.

    Raises:
        OSError: the system has no room for another process.
    """
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reading)
        try:
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid == 0:
            os.close(writing)
            # A session of its own, as a program has: where the system shares out its time by sessions, each worker is one.
            os.setsid()
            return 0
        os.write(writing, pid.to_bytes(PID_BYTES, "big"))
        os._exit(0)
    os.close(writing)
    pid = int.from_bytes(os.read(reading, PID_BYTES), "big")
    os.close(reading)
    os.waitpid(between, 0)
    if pid == 0:
        # Nothing was said. To return it would make a worker of the nursery.
        raise ChildProcessError("the second fork failed")
    return pid
