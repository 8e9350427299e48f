"""What tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import Postgres, postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One server for the whole run, started by the first test that needs it."""
    with postgres() as server:
        yield server
