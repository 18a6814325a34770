"""A general purpose agent for DIAL: one tool loop behind several front doors."""

import os

# aidial-sdk builds its models on pydantic.v1 unless this stands before its first import.
os.environ.setdefault("PYDANTIC_V2", "True")
# gRPC, which serves Dapr, would write a line about its fork handlers into the log at each process that is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
