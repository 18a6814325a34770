"""A small version of `make bench-load`: conversations with code before the whole product."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.product_load import load

pytestmark = pytest.mark.system


async def test_no_answer_of_many_conversations_fails_and_none_loses_its_state(tmp_path: Path) -> None:
    figures, errors = await load(tmp_path, seconds=20, conversations=8, observed=False)
    counts = {figure.name: figure.value for figure in figures}
    assert not errors
    assert counts["answers"] > 8
    assert counts["of them with code"] > 0
