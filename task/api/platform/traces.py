"""The platform API's traces: listed, read, rated, and replayed with another model."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path
from starlette.responses import Response

from task.api.edge.failures import failures
from task.api.edge.identity import ApiCaller
from task.api.edge.schemas import Cursor, Limit, QueryText, QueryTime
from task.api.platform import schemas as bodies
from task.api.service import CurrentCaller, CurrentKey, CurrentService, CurrentStore, router
from task.runs.replay import asked_again
from task.store.records import RunStatus
from task.store.trace_records import Rating, TraceFilter

routes = router("Traces")


async def _filter(
    session_id: QueryText = None,
    run_id: QueryText = None,
    experiment: QueryText = None,
    status: RunStatus | None = None,
    door: QueryText = None,
    since: QueryTime = None,
    until: QueryTime = None,
    model: QueryText = None,
    tool: QueryText = None,
    text: QueryText = None,
    rating: Rating | None = None,
    except_door: QueryText = None,
) -> TraceFilter:
    return TraceFilter(
        session_id, run_id, experiment, status, door, since, until, model, tool, text, rating, except_door
    )


Which = Annotated[TraceFilter, Depends(_filter)]


@routes.get("/traces", response_model=bodies.TraceList, responses=failures())
async def list_traces(
    caller: CurrentCaller, store: CurrentStore, which: Which, limit: Limit = 50, cursor: Cursor = None
) -> Any:
    """The caller's traces, the newest first; an operator's key reads everybody's."""
    return await (await store.get()).traces.list(_readable_by(caller), limit, cursor, which)


@routes.get("/traces/ratings", response_model=bodies.RatingCounts, responses=failures())
async def count_ratings(caller: CurrentCaller, store: CurrentStore, which: Which) -> Any:
    """How many of the traces that `GET /traces` lists are rated up, and how many down."""
    return await (await store.get()).traces.ratings(_readable_by(caller), which)


@routes.get("/traces/{trace_id}", response_model=bodies.TraceBody, responses=failures(404))
async def get_trace(trace_id: str, caller: CurrentCaller, store: CurrentStore) -> Any:
    """What one run did."""
    return await (await store.get()).traces.get(_readable_by(caller), trace_id)


@routes.get("/traces/{trace_id}/calls/{position}", response_model=bodies.ResultBody, responses=failures(404))
async def get_result(
    trace_id: str, position: Annotated[int, Path(ge=0)], caller: CurrentCaller, store: CurrentStore
) -> Any:
    """The whole result of one call of a trace; calls count from 0."""
    return {"result": await (await store.get()).traces.result(_readable_by(caller), trace_id, position)}


@routes.delete("/traces/{trace_id}", status_code=204, response_class=Response, responses=failures(404))
async def delete_trace(trace_id: str, caller: CurrentCaller, store: CurrentStore) -> None:
    """Remove a trace."""
    await (await store.get()).traces.delete(caller.owner, trace_id)


@routes.post("/traces/{trace_id}/rating", response_model=bodies.TraceBody, responses=failures(404, 413, 415))
async def rate(trace_id: str, body: bodies.RatingRequest, caller: CurrentCaller, store: CurrentStore) -> Any:
    """Rate an answer of the caller's own, in the place of an earlier rating. It is named by its trace, its run, or the
    id that `/v1` gave it (`chatcmpl-…`, `resp_…`)."""
    return await (await store.get()).traces.rate(caller.owner, trace_id, body.rating, body.comment)


@routes.delete("/traces/{trace_id}/rating", status_code=204, response_class=Response, responses=failures(404))
async def retract_rating(trace_id: str, caller: CurrentCaller, store: CurrentStore) -> None:
    """Remove the rating of an answer; one that has none stays as it is."""
    await (await store.get()).traces.rate(caller.owner, trace_id, None)


@routes.post(
    "/traces/{trace_id}/replay", status_code=202, response_model=bodies.RunBody, responses=failures(404, 409, 413, 415)
)
async def replay(
    trace_id: str,
    body: bodies.ReplayRequest,
    key: CurrentKey,
    service: CurrentService,
    caller: CurrentCaller,
    store: CurrentStore,
) -> Any:
    """Ask again what a trace of the caller's own was asked, with another model, in a new session; the tools run, and
    ask, as in any other run."""
    async with service.runner.once(caller.owner, key) as run:
        if run is None:
            run = await service.runner.start(await asked_again(await store.get(), caller, trace_id, body.model), key)
    service.runner.detach(run.run_id)
    return run


def _readable_by(caller: ApiCaller) -> str | None:
    return None if caller.operator else caller.owner
