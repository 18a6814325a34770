"""The configuration of an interpreter server: address, folders, and limits for code."""

from dataclasses import dataclass, field
from pathlib import Path

from mcp_servers.sandbox.policy import TierName
from mcp_servers.serving import KEEP_ALIVE_SECONDS

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one call and of one session; times in seconds, sizes in bytes."""

    seconds: float = 30
    grace_seconds: float = 2
    rest_seconds: float = 20
    idle_seconds: float = 30 * 60
    lifetime_seconds: float = 8 * 3600
    sessions: int = 128
    running: int = 24
    line_seconds: float = 60
    waiting_calls: int = 8
    spares: int = 1
    text_head: int = 64 * 1024
    text_tail: int = 16 * 1024
    output_bytes: int = 16 * MIB
    shown_files: int = 20
    new_files: int = 50
    file_bytes: int = 50 * MIB
    work_bytes: int = 512 * MIB
    work_entries: int = 20_000
    memory_bytes: int = 2048 * MIB
    processes: int = 256
    start_seconds: float = 60


@dataclass(frozen=True, slots=True)
class Config:
    """One server.

    `data_dir` keeps what must outlive a restart, `work_dir` (empty: the system's temporary folder) the kernels' files.
    `python` is the interpreter of the kernels' own environment, `tier` the sandbox to use. Keys of DIAL Core at `core`
    are accepted beside the token. At the end running calls have `drain_seconds` to finish, while new ones are refused.
    """

    token: str
    data_dir: Path
    python: Path
    host: str = "127.0.0.1"
    port: int = 8050
    allowed_hosts: tuple[str, ...] = ()
    core: str | None = None
    work_dir: Path | None = None
    unsafe: bool = False
    tier: TierName = "auto"
    preload: bool = True
    keep_alive_seconds: int = KEEP_ALIVE_SECONDS
    drain_seconds: float = 0
    limits: Limits = field(default_factory=Limits)
