"""Applications of a type: stored by users, called with their properties, and each its owner's alone."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from yarl import URL

from tests.support.core import RunningCore, local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import (
    Handler,
    Peer,
    answers,
    application_type,
    ask,
    calling,
    config,
    make_application,
    peer,
)

pytestmark = pytest.mark.local_core

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "instructions": {"type": "string", "dial:meta": {"dial:propertyKind": "server", "dial:propertyOrder": 1}},
        "tone": {"enum": ["dry"], "dial:meta": {"dial:propertyKind": "client", "dial:propertyOrder": 2}},
    },
    "additionalProperties": False,
}


@asynccontextmanager
async def typed(
    tmp_path: Path, *, entry: dict[str, Any] | None = None, schema: bool = False, version: int = 49, **more: Any
) -> AsyncGenerator[tuple[Peer, RunningCore, ClientSession]]:
    """A peer that serves a type's applications, Core with the type, and a user; `schema`: with a schema endpoint."""
    async with peer(answers(200, SCHEMA)) as app:
        address = f"{app.url}/schema" if schema else None
        types = [application_type(f"{app.url}/chat", schema=address, **more)]
        document = config({"fixed": entry} if entry else None, applicationTypeSchemas=types)
        async with local_core(document, tmp_path, version=version) as core, calling(core) as session:
            yield app, core, session


@pytest.mark.parametrize("in_header", [False, True])
async def test_an_application_is_called_with_its_id_and_reads_its_properties(tmp_path: Path, in_header: bool) -> None:
    properties = {"instructions": "Answer in rhymes, naïvely."}
    more: dict[str, Any] = {
        "dial:appendApplicationPropertiesHeader": in_header,
        "ConfigurationEndpoint": "http://127.0.0.1:9/c",
    }
    async with typed(tmp_path, **more) as (app, _, session):
        made = await make_application(session, "my%20agent__1.0", properties, display_name="Mine")
        assert made.endswith("/my%20agent__1.0")
        forged = {"X-DIAL-APPLICATION-ID": "another", "X-DIAL-APPLICATION-PROPERTIES": "{}"}
        assert (await ask(session, made.replace("%", "%25"))).status == 404  # encoded twice: another name
        assert (await ask(session, made, **forged)).status == 200
        async with session.get(f"/openai/applications/{made}") as answer:
            shown = await answer.json()
        async with session.get(f"/v1/deployments/{made}/configuration") as answer:
            assert answer.status == 502  # the type's own endpoint, where nothing listens
    assert (shown["display_name"], shown["application_properties"]) == ("Mine", properties)
    assert shown["features"]["configuration"] is True
    for seen in app.requests:
        assert (seen.url, seen.headers["X-DIAL-APPLICATION-ID"]) == ("/chat", made)
        assert ("X-DIAL-APPLICATION-PROPERTIES" in seen.headers) is in_header
    if in_header:
        assert (
            app.last.headers["X-DIAL-APPLICATION-PROPERTIES"] == '{"instructions": "Answer in rhymes, na\\u00efvely."}'
        )


async def test_an_application_is_listed_and_called_by_its_owner_alone_and_gone_once_deleted(tmp_path: Path) -> None:
    async with typed(tmp_path) as (app, core, session), calling(core, "key-two") as other:
        made = await make_application(session, "mine", {})
        for user, found in ((session, [made]), (other, [])):
            for path in ("/openai/applications", "/v1/deployment-names?type=application"):
                async with user.get(path) as answer:
                    document = await answer.json()
                assert [item["id"] for item in (document if isinstance(document, list) else document["data"])] == found
        for path in (f"/openai/applications/{made}", f"/v1/{made}", f"/v1/metadata/{made}"):
            async with other.get(path) as answer:
                assert answer.status == 403
        assert (await ask(other, made)).status == 403
        async with other.put(f"/v1/{made}", json={"endpoint": app.url}) as answer:
            assert answer.status == 403
        async with session.get(f"/v1/metadata/{made}") as answer:
            node = await answer.json()
        assert (node["resourceType"], node["url"]) == ("APPLICATION", made)
        async with session.put(f"/v1/{made}", json={"endpoint": app.url}, headers={"If-Match": "old"}) as answer:
            assert answer.status == 412
        async with session.delete(f"/v1/{made}") as answer:
            assert answer.status == 200
        assert (await ask(session, made)).status == 404


async def test_a_schema_endpoint_is_asked_once_and_its_schema_holds_below_the_configurations(tmp_path: Path) -> None:
    entry = {"applicationTypeSchemaId": "https://types.test/agent", "applicationProperties": {"instructions": "s"}}
    async with typed(tmp_path, schema=True, entry=entry) as (app, _, session):
        made = await make_application(session, "mine", {"tone": "dry"})
        with pytest.raises(AssertionError, match="Custom application validation failed"):
            await make_application(session, "bad", {"tone": "wet"})
        async with session.get("/v1/application_type_schemas/schema?id=https://types.test/agent") as answer:
            shown = await answer.json()
        async with session.get("/openai/applications/fixed") as answer:
            assert (await answer.json())["application_properties"] == {}  # what others may read of it
        assert (await ask(session, made)).status == 200
    assert (shown["$id"], shown["properties"]) == ("https://types.test/agent", SCHEMA["properties"])
    assert not any(name.endswith("Endpoint") for name in shown)
    assert [seen.url for seen in app.requests] == ["/schema", "/chat"]


@pytest.mark.fault("application: a type whose schema endpoint does not answer, or with something else")
@pytest.mark.parametrize("answer", [answers(500), answers(200, [])])
async def test_while_a_schema_endpoint_does_not_answer_the_written_properties_count(
    answer: Handler, tmp_path: Path
) -> None:
    async with peer(answer) as app:
        kind = application_type(f"{app.url}/chat", schema=f"{app.url}/schema")
        async with (
            local_core(config(applicationTypeSchemas=[kind]), tmp_path) as core,
            calling(core) as session,
        ):
            made = await make_application(session, "mine", {"instructions": "x"})
            async with session.get("/openai/applications") as found:
                assert [item["id"] for item in (await found.json())["data"]] == [made]
            with pytest.raises(AssertionError, match="Custom application validation failed"):
                await make_application(session, "bad", {"instructions": 5})


@pytest.mark.parametrize(
    ("document", "status"),
    [
        pytest.param({"application_type_schema_id": "unheard-of", "application_properties": {}}, 400, id="no type"),
        pytest.param({"application_type_schema_id": "https://types.test/agent"}, 400, id="no properties"),
        pytest.param({"display_name": "without an address"}, 400, id="no endpoint"),
        pytest.param({"endpoint": "http://x", "features": 5}, 400, id="a field of a wrong type"),
        pytest.param([], 400, id="not an object"),
        pytest.param({"endpoint": "http://x"}, 200, id="an application without a type"),
    ],
)
async def test_core_stores_valid_applications_only(tmp_path: Path, document: Any, status: int) -> None:
    async with (
        typed(tmp_path) as (_, core, session),
        CoreFiles.of(core.url, "key-one") as mine,
        session.put(f"/v1/applications/{mine.bucket}/a", json=document) as answer,
    ):
        assert answer.status == status


@pytest.mark.parametrize("folder", [False, True])
async def test_files_of_the_properties_are_readable_with_the_applications_key(tmp_path: Path, folder: bool) -> None:
    async with typed(tmp_path) as (app, core, session), CoreFiles.of(core.url, "key-one") as mine:
        for name in ("notes/a.txt", "other.txt"):
            await mine.put(name)
        context = mine.url("notes/" if folder else "notes/a.txt")
        made = await make_application(session, "mine", {"context": [context]})
        found: list[int] = []

        async def reads(key: str) -> None:
            async with calling(core, key) as application:
                for name in ("notes/a.txt", "other.txt"):
                    async with application.get(mine.file(name)) as answer:
                        found.append(answer.status)

        app.during = reads
        assert (await ask(session, made)).status == 200
        assert found == [200, 403]
        if not folder:
            await mine.delete("notes/a.txt")
            assert (await ask(session, made)).status == 403
        async with calling(core, "key-two") as other:
            with pytest.raises(AssertionError, match="Failed to access application resource"):
                await make_application(other, "theirs", {"context": [mine.url("other.txt")]})


@pytest.mark.parametrize("marked", [False, True])
async def test_core_025_shares_the_files_of_a_list_only_where_their_own_rule_is_marked(
    marked: bool, tmp_path: Path
) -> None:
    async with peer(answers()) as app:
        kind = application_type(app.url)
        if marked:
            kind["properties"]["context"]["items"] |= {"dial:meta": kind["properties"]["context"]["dial:meta"]}
        document = config(applicationTypeSchemas=[kind])
        async with (
            local_core(document, tmp_path, version=25) as core,
            calling(core) as session,
            CoreFiles.of(core.url, "key-one") as mine,
        ):
            await mine.put("a.txt")
            made = await make_application(session, "mine", {"context": [mine.url("a.txt")]})
            found: list[int] = []

            async def reads(key: str) -> None:
                async with calling(core, key) as application:
                    for path in (mine.file("a.txt"), f"/v1/{made}", f"/openai/applications/{made}"):
                        async with application.get(path) as answer:
                            found.append(answer.status)

            app.during = reads
            await ask(session, made)
    assert found == [200 if marked else 403, 403, 403]  # an application does not even see itself
    assert app.last.json["custom_fields"]["application_properties"].keys() == (
        {"context", "0"} if marked else {"context"}
    )


async def test_core_025_sends_server_properties_in_the_body_and_knows_no_schema_endpoint(tmp_path: Path) -> None:
    async with typed(tmp_path, version=25, schema=True) as (app, _, session):
        made = await make_application(session, "mine", {"tone": "wet"})
        await ask(session, made)
    async with typed(tmp_path, version=25) as (written, _, session):
        made = await make_application(session, "mine", {"instructions": "Be brief", "unmarked": 1})
        await ask(session, made, {"messages": [], "custom_fields": {"configuration": {"a": 1}}})
    assert [seen.url for seen in app.requests] == ["/chat"]
    assert app.last.json["custom_fields"] == {"application_properties": {}}
    given = {"configuration": {"a": 1}, "application_properties": {"instructions": "Be brief"}}
    assert written.last.json["custom_fields"] == given
    assert "X-DIAL-APPLICATION-ID" not in written.last.headers


@pytest.mark.parametrize("name", ["..", "%2e%2e", "a%2Fb", "a%00b", "", "a.", "x" * 901])
@pytest.mark.fault("dial: names with `..`, blanks or `%2F` in the addresses of applications")
async def test_an_application_with_an_illegal_name_is_neither_stored_nor_found(tmp_path: Path, name: str) -> None:
    async with typed(tmp_path) as (app, core, session), CoreFiles.of(core.url, "key-one") as mine:
        url = URL(f"{core.url}/v1/applications/{mine.bucket}/{name}", encoded=True)
        async with session.put(url, json={"endpoint": app.url}) as answer:
            assert answer.status == 400
        twice = name.replace("%", "%25")  # decoded once on the way, as any deployment's name is
        assert (await ask(session, f"applications/{mine.bucket}/{twice}")).status == 404
    assert app.requests == []
