"""What `make scale` concludes: a slow machine is neither a loss nor a refusal."""

from collections.abc import Callable

import aiohttp
import pytest
from aiohttp import web

from tests.benchmarks.scale_audit import LEAST, Report, audit, verdict
from tests.benchmarks.scale_people import Gone, Person, Turn
from tests.support.core_peers import Handler, peer


def turns(answered: int = LEAST, refused: int = 0, late: int = 0) -> list[Turn]:
    kinds = (
        *[{"seconds": 1.0}] * answered,
        *[{"refused": "HTTP 503"}] * refused,
        *[{"late": True}] * late,
    )
    return [Turn("w", "words 1", 0.0, **kind) for kind in kinds]  # pyright: ignore[reportArgumentType]


def report(*, lost: int = 0, unread: int = 0) -> Report:
    made = Report(unread=unread)
    made.lost.update(["answers"] * lost)
    return made


@pytest.mark.parametrize(
    ("found", "asked", "code"),
    [
        (report(), turns(), 0),
        (report(), turns(late=10_000), 0),
        (report(), turns(answered=LEAST - 1), 2),
        (report(), turns(answered=LEAST - 1, refused=10_000), 2),
        (report(), turns(refused=LEAST), 1),
        (report(unread=1), turns(), 2),
        (report(lost=1), turns(answered=0), 1),
    ],
    ids=["sound", "late", "few", "few and refused", "refused", "unread", "lost"],
)
def test_a_loss_is_a_fault_and_too_few_answers_are_no_result(found: Report, asked: list[Turn], code: int) -> None:
    assert verdict(found, asked)[0] == code


def unsteady(*answers: Callable[[], web.Response]) -> Handler:
    """One answer after the other."""
    left = list(answers)

    async def handle(_: web.Request) -> web.StreamResponse:
        return left.pop(0)()

    return handle


def refuse() -> web.Response:
    return web.Response(status=503)


def whole() -> web.Response:
    return web.json_response({"messages": []})


def missing() -> web.Response:
    return web.Response(status=404)


@pytest.mark.parametrize(("last", "lost"), [(whole, {}), (missing, {"sessions": 1})], ids=["there", "gone"])
async def test_what_cannot_be_read_back_in_time_is_asked_for_again(
    last: Callable[[], web.Response], lost: dict[str, int]
) -> None:
    async with peer(unsteady(refuse, refuse, last)) as agents, aiohttp.ClientSession() as session:
        person = Person(1, agents.url, "key", session, (0.0, 0.0), session_id="s")
        found = await audit([person], ())
    assert (found.lost, found.unread, len(agents.requests)) == (lost, 0, 3)


async def test_a_run_that_is_gone_is_not_asked_for_again() -> None:
    async with peer(unsteady(refuse, missing)) as agents, aiohttp.ClientSession() as session:
        with pytest.raises(Gone):
            await Person(1, agents.url, "key", session, (0.0, 0.0)).events("r")
