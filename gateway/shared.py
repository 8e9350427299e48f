"""What replicas share where `storage.redis` names a server, and what each process has for itself where it does not.

Knows which is which. The clients of a server take a tenth of a second to import, which nobody pays who has none.
"""

from __future__ import annotations

from gateway.clock import Clock
from gateway.config.bundle_store import BundleStore
from gateway.config.models import StorageConfig
from gateway.runs.memory_queue import MemoryQueue
from gateway.runs.queue import Queue
from gateway.security.counters import Counters
from gateway.security.memory_counters import MemoryCounters
from gateway.store.answers import MemoryAnswers
from gateway.store.bundles import MemoryBundles
from gateway.store.kept import KeptRoutes, MemoryKept
from gateway.turn.answers import AnswerStore


def bundle_store(storage: StorageConfig, clock: Clock) -> BundleStore:
    """Where bundles and leases are."""
    if storage.redis is None:
        return MemoryBundles(clock)
    from gateway.store.valkey import ValkeyBundles

    return ValkeyBundles(storage.redis, storage.redis_prefix)


def answer_store(storage: StorageConfig, clock: Clock) -> AnswerStore:
    """Where answers are kept for equal questions."""
    if storage.redis is None:
        return MemoryAnswers(clock)
    from gateway.store.valkey_answers import ValkeyAnswers

    return ValkeyAnswers(storage.redis, storage.redis_prefix, clock)


def kept_routes(storage: StorageConfig, clock: Clock) -> KeptRoutes:
    """Where the route of each conversation is remembered."""
    if storage.redis is None:
        return MemoryKept(clock.monotonic)
    from gateway.store.valkey_kept import ValkeyKept

    return ValkeyKept(storage.redis, storage.redis_prefix, clock.monotonic)


def kept_offers(storage: StorageConfig, clock: Clock) -> KeptRoutes:
    """Where it is remembered which tools each conversation was offered."""
    if storage.redis is None:
        return MemoryKept(clock.monotonic)
    from gateway.store.valkey_kept import ValkeyKept

    prefix = f"{storage.redis_prefix}offers:"
    return ValkeyKept(storage.redis, prefix, clock.monotonic, "tools are offered as to new conversations")


def counters(storage: StorageConfig, clock: Clock) -> Counters:
    """Where limits and budgets are counted."""
    if storage.redis is None:
        return MemoryCounters(clock)
    from gateway.store.valkey_counters import ValkeyCounters

    return ValkeyCounters(storage.redis, storage.redis_prefix)


def run_queue(storage: StorageConfig, clock: Clock) -> Queue:
    """Where runs wait."""
    if storage.redis is None:
        return MemoryQueue(clock)
    from gateway.runs.valkey_queue import ValkeyQueue

    return ValkeyQueue(storage.redis, storage.redis_prefix, clock)
