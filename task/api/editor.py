"""The editor of an application, which DIAL Chat shows in a frame: its page, and its check of properties."""

import html
import json
from urllib.parse import urlsplit

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from task.api.guard import APPLICATION_SCHEMA, HttpOptions
from task.api.page import STATIC
from task.product.applications import ApplicationProperties, Bounds, UnfitProperties

CHECK = "/editor/check"
# Frames of the named origins only; it sends to the agent and to DIAL Core, and has no style or script in its text.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self' {core}; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors {hosts}"
)


def add_editor(app: FastAPI, options: HttpOptions, bounds: Bounds) -> None:
    """Serve the editor at `/editor`, and the check of properties (POST) at `/editor/check`.

    Neither asks who calls: they show no more than the schema, which DIAL Core reads without a key.
    """
    core = urlsplit(options.editor_core)
    policy = POLICY.format(core=f"{core.scheme}://{core.netloc}", hosts=" ".join(options.editor_origins))
    facts = {"core": options.editor_core, "hosts": list(options.editor_origins)}
    facts |= {"schema": APPLICATION_SCHEMA, "check": CHECK}
    text = (STATIC / "editor.html").read_text("utf-8").replace("{facts}", html.escape(json.dumps(facts)))
    page = Response(text, headers={"Content-Security-Policy": policy}, media_type="text/html")

    async def check(request: Request) -> Response:
        """What is wrong: a sentence, and the path to the field (`at`); nothing for good properties."""
        try:
            bounds.check(ApplicationProperties.read(orjson.loads(await request.body())))
        except orjson.JSONDecodeError:
            return JSONResponse({"at": [], "error": "The properties are not valid JSON."})
        except UnfitProperties as error:
            return JSONResponse({"at": error.place.split("."), "error": str(error)})
        return JSONResponse({})

    app.router.routes.append(Route("/editor", page, methods=["GET"], include_in_schema=False))
    app.router.routes.append(Route(CHECK, check, methods=["POST"], include_in_schema=False))
