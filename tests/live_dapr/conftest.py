"""These tests need a real sidecar with the components of this folder at DAPR_GRPC_ENDPOINT; else none is collected."""

from tests.support.isolation import OUTSIDE

PROVIDER_PORT, AGENT_PORT = 45871, 45872  # as the components have them
NEEDED = {"provider", "agent"}
ADDRESS = OUTSIDE.get("DAPR_GRPC_ENDPOINT", "")
TOKEN = OUTSIDE.get("DAPR_API_TOKEN", "")


def _version() -> str | None:
    """The sidecar's version, where there is one with our components."""
    import grpc
    from dapr.conf.helpers import GrpcEndpoint
    from dapr.proto.runtime.v1.dapr_pb2_grpc import DaprStub
    from google.protobuf.empty_pb2 import Empty

    metadata = (("dapr-api-token", TOKEN),) if TOKEN else ()
    with grpc.insecure_channel(GrpcEndpoint(ADDRESS).endpoint) as channel:
        try:
            found = DaprStub(channel).GetMetadata(Empty(), timeout=5, metadata=metadata)
        except grpc.RpcError:
            return None
    return found.runtime_version if {item.name for item in found.registered_components} >= NEEDED else None


VERSION = _version() if ADDRESS else None
collect_ignore_glob = [] if VERSION else ["test_*.py"]


def pytest_report_header() -> str:
    missing = "Dapr: no sidecar with the components of tests/live_dapr at DAPR_GRPC_ENDPOINT"
    return f"Dapr: {VERSION} at {ADDRESS}" if VERSION else missing
