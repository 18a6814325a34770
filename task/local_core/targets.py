"""Which addresses a call of a deployment goes to, and with which headers."""

from __future__ import annotations

import orjson
from aiohttp import web
from multidict import CIMultiDict

from task.local_core.config import Application, Deployment, Model, Upstream
from task.local_core.identity import PerRequestKey
from task.local_core.listings import features_of
from task.local_core.relay import Target, passed_headers, with_query


def completion_targets(
    request: web.Request, deployment: Deployment, key: PerRequestKey, *, core025: bool
) -> list[Target]:
    """The targets in the order they are tried: a model's upstreams by tier, else the endpoint alone."""
    headers = passed_headers(request.headers, authorization=deployment.forward_auth_token)
    headers["API-KEY"] = key.value
    if not core025:
        headers.update(_dial_headers(deployment))
    url = with_query(deployment.endpoint or "", request.rel_url.raw_query_string)
    if not isinstance(deployment, Model) or not deployment.upstreams:
        return [Target(deployment.name, url, headers)]
    usable = sorted((one for one in deployment.upstreams if one.weight > 0), key=lambda one: one.tier)
    return [
        Target(deployment.name, url, _with_upstream(headers, one)) for one in usable[: deployment.max_retry_attempts]
    ]


def feature_target(request: web.Request, deployment: Deployment, endpoint: str, key: PerRequestKey) -> Target:
    """The target of a call of a feature's endpoint; the query is not passed on."""
    headers = passed_headers(request.headers, authorization=deployment.forward_auth_token)
    headers["API-KEY"] = key.value
    return Target(deployment.name, endpoint, headers)


def _dial_headers(deployment: Deployment) -> dict[str, str]:
    headers = {
        "X-DIAL-DEPLOYMENT-FEATURES": orjson.dumps(features_of(deployment)).decode(),
        "X-DIAL-DEPLOYMENT-ID": deployment.name,
    }
    if isinstance(deployment, Model) and deployment.override_name:
        headers["X-DIAL-OVERRIDE-NAME"] = deployment.override_name
    if isinstance(deployment, Application) and deployment.application_properties is not None:
        headers["X-DIAL-APPLICATION-ID"] = deployment.name
        headers["X-DIAL-APPLICATION-PROPERTIES"] = orjson.dumps(deployment.application_properties).decode()
    return headers


def _with_upstream(headers: CIMultiDict[str], upstream: Upstream) -> CIMultiDict[str]:
    result = headers.copy()
    result["X-UPSTREAM-ENDPOINT"] = upstream.endpoint
    if upstream.key is not None:
        result["X-UPSTREAM-KEY"] = upstream.key
    if upstream.extra_data is not None:
        extra = upstream.extra_data
        result["X-UPSTREAM-EXTRA-DATA"] = extra if isinstance(extra, str) else orjson.dumps(extra).decode()
    return result
