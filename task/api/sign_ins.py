"""Sign-ins at MCP servers outside DIAL Core: how they are started, finished and taken back."""

from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from task.api.failures import failures
from task.api.schemas import RequestModel, ResponseModel
from task.api.service import CurrentService, router

# No name and password may stand before the host, which would then be another.
_REDIRECT = r"^(https://[^/?#@\\\s]+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?)/[^#\s]*$"


class SignInStart(RequestModel):
    """`redirect` is where the server sends the user afterwards: the address of the page or program that began."""

    redirect: Annotated[str, Field(max_length=500, pattern=_REDIRECT)]


class SignInEnd(RequestModel):
    """What the server added to `redirect`; `code` is empty where the user refused."""

    state: str = Field(max_length=200)
    code: str = Field(default="", max_length=10_000)
    iss: str | None = Field(default=None, max_length=1_000)


class SignInBody(ResponseModel):
    """`url` is where the user signs in, as long as the user has not."""

    server: str
    url: str | None = None


routes = router("Sign-ins")


@routes.post("/sign-ins", response_model=SignInBody, responses=failures(404, 413, 415))
async def finish_sign_in(body: SignInEnd, service: CurrentService) -> Any:
    """Finish the sign-in with what the server added to the address, once and within ten minutes."""
    signing_in = service.services.mcp.signing_in
    return {"server": await signing_in.finish(service.owner, body.state, body.code, body.iss)}


@routes.post("/sign-ins/{server}", response_model=SignInBody, responses=failures(404, 413, 415))
async def start_sign_in(server: str, body: SignInStart, service: CurrentService) -> Any:
    """Begin a sign-in: the answer has the address to open."""
    signing_in = service.services.mcp.signing_in
    return {"server": server, "url": await signing_in.start(service.owner, server, body.redirect)}


@routes.delete("/sign-ins/{server}", status_code=204, response_class=Response, responses=failures(404))
async def forget_sign_in(server: str, service: CurrentService) -> None:
    """Delete the caller's tokens of the server."""
    await service.services.mcp.signing_in.forget(service.owner, server)
