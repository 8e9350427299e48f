"""What tests of several rooms share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.postgres import Postgres, postgres

# The suite tries the same examples each time, so that only a change can fail it; `make fuzz` looks for new ones.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("fuzz", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One server for the whole run, started by the first test that needs it."""
    with postgres() as server:
        yield server
