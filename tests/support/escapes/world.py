"""What an attack knows about the world outside; it reads this and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

# What an attack says when it gained something that has no content: a namespace, a socket, a system call.
GOT_IT = "got it"


@dataclass(frozen=True, slots=True)
class World:
    """Paths are absolute. Every attack has its own canary, `outside/NAME`, to identify its traces.

    `objects` and `keys` are those of System V objects outside, `leftovers` paths where something could outlive the run;
    each by attack.
    """

    inside: str
    outside: str
    read_only: str
    neighbour_pid: int
    neighbour_address: int
    neighbour_file: str
    shared_memory: str
    objects: dict[str, int]
    keys: dict[str, int]
    leftovers: dict[str, str]
    tcp_port: int
    tcp6_port: int
    udp_port: int
    stream_socket: str
    datagram_socket: str
    sequence_socket: str
    abstract_socket: str
    memory_limit: int

    def canary(self, name: str) -> str:
        """The file that this attack is to read or change."""
        return f"{self.outside}/{name}"

    def to_json(self) -> str:
        """The world as one word of a command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> World:
        """The world of `to_json`."""
        return World(**json.loads(text))
