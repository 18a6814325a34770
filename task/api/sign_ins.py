"""Sign-ins at MCP servers outside DIAL Core: how they are started, finished and taken back."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from starlette.responses import Response

from task.api.failures import failures
from task.api.schemas import RequestModel, ResponseModel
from task.api.service import CurrentService, Service, router
from task.errors import NotFound

if TYPE_CHECKING:
    from task.tools.mcp.oauth import UserSignIns


class SignInStart(RequestModel):
    """`redirect` is where the server sends the user afterwards: the address of the page or program that began."""

    redirect: Annotated[str, Field(max_length=500, pattern=r"^(https://|http://(localhost|127\.0\.0\.1|\[::1\])[:/])")]


class SignInEnd(RequestModel):
    """What the server added to `redirect`; `code` is empty where the user refused."""

    state: str = Field(max_length=200)
    code: str = Field(default="", max_length=10_000)
    iss: str | None = Field(default=None, max_length=1_000)


class SignInPlace(ResponseModel):
    """Where the user signs in."""

    url: str


class SignInBody(ResponseModel):
    server: str
    signed_in: bool


class SignInList(ResponseModel):
    sign_ins: list[SignInBody]
    count: int


routes = router("Sign-ins")


def _sign_ins(service: Service) -> "UserSignIns":
    if (found := service.services.mcp.user_sign_ins) is None:
        raise NotFound("there is no server to sign in to")
    return found


@routes.get("/sign-ins", response_model=SignInList, responses=failures())
async def list_sign_ins(service: CurrentService) -> Any:
    """The servers at which users sign in, and whether the caller has."""
    if (known := service.services.mcp.user_sign_ins) is None:
        return {"sign_ins": [], "count": 0}
    found = [{"server": name, "signed_in": bool(await known.token(service.owner, name))} for name in known.servers]
    return {"sign_ins": found, "count": len(found)}


@routes.post("/sign-ins", response_model=SignInBody, responses=failures(404, 413, 415))
async def finish_sign_in(body: SignInEnd, service: CurrentService) -> Any:
    """Finish the sign-in with what the server added to the address, once and within ten minutes."""
    server = await _sign_ins(service).finish(service.owner, body.state, body.code, body.iss)
    return {"server": server, "signed_in": True}


@routes.post("/sign-ins/{server}", response_model=SignInPlace, responses=failures(404, 413, 415))
async def start_sign_in(server: str, body: SignInStart, service: CurrentService) -> Any:
    """Begin a sign-in: the answer is the address to open."""
    return {"url": await _sign_ins(service).start(service.owner, server, body.redirect)}


@routes.delete("/sign-ins/{server}", status_code=204, response_class=Response, responses=failures(404))
async def forget_sign_in(server: str, service: CurrentService) -> None:
    """Delete the caller's tokens of the server."""
    if not await _sign_ins(service).forget(service.owner, server):
        raise NotFound(f"there is no sign-in at {server!r}")
