"""What tests of the whole product share."""

import pytest


@pytest.fixture(params=["1280", "390"])
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    """The window of a desk and of a phone."""
    from tests.support.browser import NARROW, WIDE  # imports Playwright

    return WIDE if request.param == "1280" else NARROW
