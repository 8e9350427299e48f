"""The shipped gateway as a process, one for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.program import Program, copy_shipped, program


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The program, served from copies of the shipped files."""
    with program(copy_shipped(tmp_path_factory.mktemp("shipped"))) as running:
        yield running
