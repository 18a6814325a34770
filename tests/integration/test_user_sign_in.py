"""MCP servers outside Core at which each user signs in: OAuth, tokens sealed in the store, and what may go wrong."""

import asyncio
import re
import urllib.request
import webbrowser
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task.conversation.inputs import Answer
from task.errors import InvalidRequest, NotFound
from task.llm.scripted import says, wants
from task.store.access import StoreAccess, StoreOptions
from task.tools.mcp.hub import MCPHub, ServerSpec
from task.tools.mcp.oauth import NOT_YOURS, UserSignIns
from tests.support.choices import CALLER
from tests.support.command_console import AtTheTerminal, talking
from tests.support.http_api import Api, http_api, said
from tests.support.oauth_peer import Change, OAuthPeer, agree, oauth_peer
from tests.support.stores import StoreClock, sqlite_url

BACK = "http://localhost:1/"


def leads(place: str, field: str) -> Change:
    return lambda document: {**document, field: place}


@asynccontextmanager
async def sign_ins(
    folder: Path, secret: bytes = b"secret", clock: StoreClock | None = None, **options: Any
) -> AsyncGenerator[tuple[OAuthPeer, UserSignIns]]:
    """An authorization server, and the sign-ins of one process."""
    kept = StoreOptions(sqlite_url(folder))
    store = StoreAccess(replace(kept, clock=clock) if clock else kept)
    async with oauth_peer(**options) as peer:
        yield peer, UserSignIns(store, secret, {"tickets": peer.url})
        await store.close()


async def ann() -> str:
    return "ann"


async def signed_in(users: UserSignIns, owner: str = "ann") -> dict[str, str]:
    """What the browser brought back from a sign-in that is finished."""
    back = await agree(await users.start(owner, "tickets", BACK))
    assert await users.finish(owner, back["state"], back["code"], back["iss"]) == "tickets"
    return back


async def test_a_user_signs_in_and_nothing_that_is_stored_shows_the_token(tmp_path: Path) -> None:
    async with sign_ins(tmp_path) as (peer, users):
        assert await users.token("ann", "tickets") is None
        await signed_in(users)
        token = await users.token("ann", "tickets")
        assert token in peer.access
        assert await users.token("bob", "tickets") is None
        sealed = await (await users.store.get()).sealed.get("ann", "tickets")
        assert sealed is not None
        assert not any(secret in sealed for secret in (*peer.access, *peer.refresh, *peer.clients))
        await (await users.store.get()).sealed.put("bob", "tickets", sealed, None)
        assert await users.token("bob", "tickets") is None  # it is sealed for its owner
        moved = replace(users, servers={"tickets": "https://elsewhere.example/mcp"})
        assert await moved.token("ann", "tickets") is None  # and for the server's address
        await users.forget("ann", "tickets", "an older token")
        assert await users.token("ann", "tickets") == token
        await users.forget("ann", "tickets")
        with pytest.raises(NotFound):
            await users.forget("ann", "tickets")
        assert await users.token("ann", "tickets") is None


async def test_other_turns_do_not_end_a_sign_in_that_the_user_is_in_the_middle_of(tmp_path: Path) -> None:
    async with sign_ins(tmp_path) as (peer, users):
        hub = MCPHub([ServerSpec("tickets", peer.url, sign_in=True)], user_sign_ins=users)
        back = await agree(await users.start("ann", "tickets", BACK))
        [issue] = (await hub.discover(replace(CALLER, principal=ann))).issues
        assert issue.status == 401
        assert await users.finish("ann", back["state"], back["code"], back["iss"]) == "tickets"
        await hub.close()


@pytest.mark.fault("sign-in: a token that lasts for longer than can be counted")
async def test_a_token_that_lasts_for_ever_is_one_that_can_be_used(tmp_path: Path) -> None:
    async with sign_ins(tmp_path, seconds=10**400) as (peer, users):
        await signed_in(users)
        assert await users.token("ann", "tickets") in peer.access


@pytest.mark.fault("sign-in: a `state` or `iss` of another, a second or a late answer, a user who refuses")
@pytest.mark.parametrize("case", ["another's", "forged", "iss", "no iss", "late", "refused", "code"])
async def test_only_the_answer_to_the_users_own_sign_in_counts_and_only_once(tmp_path: Path, case: str) -> None:
    clock = StoreClock()
    async with sign_ins(tmp_path, clock=clock) as (peer, users):
        back = await agree(await users.start("ann", "tickets", BACK))
        owner, state, code, issuer = "ann", back["state"], back["code"], back["iss"]
        match case:
            case "another's":
                owner = "bob"
                await users.start("bob", "tickets", BACK)
            case "forged":
                state = "x" * 43
            case "iss":
                issuer = "https://evil.example"
            case "no iss":
                issuer = None
            case "late":
                clock.now += 601
            case "refused":
                code = ""
            case _:
                code = "made-up"
        with pytest.raises(InvalidRequest) as refusal:
            await users.finish(owner, state, code, issuer)
        assert (str(refusal.value) == NOT_YOURS) == (case in ("another's", "forged", "late"))
        assert peer.access == set()
        if owner == "ann" and state == back["state"]:
            with pytest.raises(InvalidRequest, match="Start it again"):
                await users.finish("ann", back["state"], back["code"], back["iss"])
        assert await users.token("ann", "tickets") is None


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a translated address": (
        {"metadata": leads("https://[64:ff9b::a9fe:a9fe]/", "registration_endpoint")},
        "not a public",
    ),
    "an issuer at a link-local host": (
        {"resource": lambda d: {**d, "authorization_servers": ["https://169.254.169.254/"]}},
        "not a public one",
    ),
    "a private registration": ({"metadata": leads("https://10.0.0.1/r", "registration_endpoint")}, "not a public one"),
    "loopback by a name": ({"metadata": leads("https://localhost/r", "registration_endpoint")}, "not a public one"),
    "mapped": ({"metadata": leads("https://[::ffff:127.0.0.1]/r", "registration_endpoint")}, "not a public one"),
    "plain http": ({"metadata": leads("http://1.1.1.1/r", "registration_endpoint")}, "not a public one"),
    "10 MB of metadata": ({"metadata": lambda _: b"{" * 10_000_000}, "no usable answer"),
    "10 MB about the resource": ({"resource": lambda _: b"{" * 10_000_000}, "no usable answer"),
    "another issuer": ({"metadata": leads("https://evil.example", "issuer")}, "another issuer"),
    "another resource": ({"resource": leads("https://evil.example/mcp", "resource")}, "another server"),
    "a page without https": ({"metadata": leads("http://evil.example/a", "authorization_endpoint")}, "with https"),
    "no PKCE": ({"metadata": lambda d: {**d, "code_challenge_methods_supported": ["plain"]}}, "PKCE"),
    "not JSON": ({"metadata": lambda _: b"[" * 1000}, "not describe"),
}


@pytest.mark.fault("sign-in: metadata that lead to a link-local or private host, have 10 MB, or are another's")
@pytest.mark.parametrize("case", HOSTILE)
async def test_metadata_lead_nowhere_but_to_public_hosts_and_that_of_the_server(tmp_path: Path, case: str) -> None:
    options, words = HOSTILE[case]
    async with sign_ins(tmp_path, **options) as (_, users):
        with pytest.raises(InvalidRequest, match=words):
            await asyncio.wait_for(users.start("ann", "tickets", BACK), 30)


@pytest.mark.fault("sign-in: two replicas that refresh one token at once")
async def test_of_two_replicas_one_refreshes_a_token_and_both_use_it(tmp_path: Path) -> None:
    clock = StoreClock()
    async with sign_ins(tmp_path, clock=clock, seconds=60) as (peer, users):
        await signed_in(users)
        other = replace(users, store=StoreAccess(users.store.options))
        first = await users.token("ann", "tickets")
        clock.now += 61
        found = await asyncio.gather(*(replica.token("ann", "tickets") for replica in (users, other) * 4))
        assert len(set(found)) == 1
        assert found[0] in peer.access
        assert found[0] != first
        assert peer.refreshed == 1
        peer.refresh.clear()  # revoked at the server
        clock.now += 61
        assert await asyncio.gather(*(replica.token("ann", "tickets") for replica in (users, other))) == [None, None]
        await other.store.close()


@pytest.mark.fault("sign-in: an authorization server that is slow to refresh a token, or fails")
async def test_a_slow_refresh_is_not_repeated_and_a_failed_one_ends_no_sign_in(tmp_path: Path) -> None:
    clock = StoreClock()
    async with sign_ins(tmp_path, clock=clock, seconds=60) as (peer, users):
        await signed_in(users)
        other = replace(users, store=StoreAccess(users.store.options))
        clock.now += 61
        peer.open.clear()
        slow = asyncio.create_task(users.token("ann", "tickets"))
        await asyncio.wait_for(peer.asked.wait(), 20)
        clock.now += 12
        waiting = asyncio.create_task(other.token("ann", "tickets"))
        for _ in range(10):  # it looks, too
            await other.token("bob", "tickets")
        peer.open.set()
        assert await slow == await waiting
        assert peer.refreshed == 1
        clock.now += 61
        peer.status = 503
        with pytest.raises(InvalidRequest, match="no usable answer"):
            await users.token("ann", "tickets")
        peer.status = 200
        clock.now += 61
        assert await users.token("ann", "tickets") in peer.access
        await other.store.close()


@pytest.mark.fault("sign-in: a lost or changed secret of the installation")
async def test_with_another_secret_the_user_signs_in_again(tmp_path: Path) -> None:
    async with sign_ins(tmp_path) as (peer, users):
        await signed_in(users)
        changed = replace(users, secret=b"another")
        assert await changed.token("ann", "tickets") is None
        await signed_in(changed)
        assert await changed.token("ann", "tickets") in peer.access


ASKS, READS = wants("sign_in_tickets", server="tickets"), wants("read_ticket")


async def waiting(api: Api) -> dict[str, Any]:
    """The only question that is open."""
    [asked] = (await api.get("/approvals")).json["approvals"]
    return asked


async def sign_in(api: Api) -> None:
    """Sign in as the page does it."""
    place = (await api.post("/sign-ins/tickets", {"redirect": f"{api.url}/"})).json["url"]
    assert (await api.post("/sign-ins", await agree(place))).json == {"server": "tickets"}


@pytest.mark.fault("sign-in: a restart while the user signs in")
async def test_a_run_waits_for_the_sign_in_even_beyond_a_restart_and_goes_on_with_the_servers_tools(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with oauth_peer() as peer:
        server = [{"name": "tickets", "url": peer.url, "sign_in": True}]
        async with http_api(ASKS, tmp_path=tmp_path, mcp_servers=server) as api:
            body = {"messages": [said("What is in ticket 7?")], "session_id": None}
            run = (await api.post("/runs", body)).json
            events = await api.events(run["run_id"])
            assert events[-1]["status"] == "suspended"
            assert "Initialization issues" not in str(events)  # nothing is broken
            place = (await api.post("/sign-ins/tickets", {"redirect": f"{api.url}/"})).json["url"]
            assert "tickets needs the user to sign in" in str(api.upstream.requests[0].messages[0])
        async with http_api(READS, says("The printer."), tmp_path=tmp_path, mcp_servers=server) as api:
            await api.post("/sign-ins", await agree(place))
            asked = await waiting(api)
            assert "contacts tickets" in str(asked)
            answered = await api.post(f"/approvals/{asked['approval_id']}", {"decision": "approve"})
            events = await api.events(answered.json["resumed"]["run_id"])
            assert "".join(event["text"] for event in events if event["type"] == "text") == "The printer."
            results = [str(item["content"]) for item in api.upstream.requests[-1].messages if item["role"] == "tool"]
            assert results[0].startswith("The user is signed in to tickets.")
            assert results[1] == "ticket 7: the printer"
            sent = "".join(str(request.body) for request in api.upstream.requests)
            kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).decode("latin-1")
            traces = (await api.get("/traces")).text
        for secret in (*peer.access, *peer.refresh):
            assert all(secret not in place for place in (sent, kept, traces, caplog.text))


@pytest.mark.fault("sign-in: a token that the server takes back, an approval without a sign-in, a sign-out")
async def test_a_token_that_the_server_no_longer_takes_is_forgotten_and_the_user_is_asked_again(tmp_path: Path) -> None:
    async with oauth_peer() as peer:
        server = [{"name": "tickets", "url": peer.url, "sign_in": True}]
        async with http_api(says("Hi."), READS, ASKS, says("No."), tmp_path=tmp_path, mcp_servers=server) as api:
            await sign_in(api)
            await api.complete("Hello")  # the list of tools is known
            peer.expire()
            run = (await api.post("/runs", {"messages": [said("Ticket 7?")]})).json
            assert (await api.events(run["run_id"]))[-1]["status"] == "suspended"
            asked = await waiting(api)
            answered = await api.post(f"/approvals/{asked['approval_id']}", {"decision": "approve"})
            await api.events(answered.json["resumed"]["run_id"])
            result = str(api.upstream.requests[-1].messages[-1]["content"])
            assert "The user has not signed in to tickets" in result
            assert (await api.call("DELETE", "/sign-ins/tickets")).status == 404
            await sign_in(api)
            assert (await api.call("DELETE", "/sign-ins/tickets")).status == 204
            for place in ("javascript:alert(1)", "http://localhost:80@evil.example/", "https://a@evil.example/"):
                assert (await api.post("/sign-ins/tickets", {"redirect": place})).status == 400
            assert (await api.post("/sign-ins/none", {"redirect": f"{api.url}/"})).status == 400


def opens(address: str) -> None:
    urllib.request.urlopen(address).close()


class InTheBrowser(AtTheTerminal):
    """Someone at the terminal who opens the address that is shown, and agrees."""

    def display_system_message(self, message: str) -> None:
        super().display_system_message(message)
        if (address := re.search(r"http://\S+/authorization\S+", message)) is not None:
            self.back = asyncio.get_running_loop().run_in_executor(None, opens, address[0])


async def test_the_console_opens_the_sign_in_page_when_its_question_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER", "true")  # a browser that does nothing
    monkeypatch.setattr(webbrowser, "_tryorder", None)
    person = InTheBrowser(Answer(True))
    async with oauth_peer() as peer:
        server = [{"name": "tickets", "url": peer.url, "sign_in": True}]
        async with talking(tmp_path, ASKS, READS, says("The printer."), output=person, mcp_servers=server) as console:
            shown = await console.types("What is in ticket 7?")
            assert shown[-1] == "You are signed in to tickets."
            assert console.history.get_messages()[-1]["content"] == "The printer."
            assert len(peer.calls) == 1
            await console.shows("/sign-in", "Servers to sign in to: tickets")
            await console.shows("/sign-out tickets", "The tokens of tickets are deleted.")
            await console.shows("/sign-out tickets", "Command: You are not signed in to 'tickets'.")
