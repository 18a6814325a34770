"""The cells of the matrix, and the few places where one of them differs from what its conversation says."""

from collections.abc import Mapping
from pathlib import Path

from tests.contract.matrix.backends import BACKENDS, Backend
from tests.support.scripts import Conversation, load_conversations

DOORS = ("DIAL", "/v1", "/v1 streaming", "/chat", "console", "coding", "editor")
CONVERSATIONS: Mapping[str, Conversation] = {
    conversation.name: conversation for conversation in load_conversations(Path(__file__).parent)
}
HTTP_DOORS = ("DIAL", "/v1", "/v1 streaming", "/chat")
SEARCH = "a search of the web"
RENAMING = ("/v1", "/v1 streaming", "/chat", "console", "editor")  # where the search has its documented name
QUESTION = "a question instead of a decision"
EXCEPTIONS: Mapping[str, str] = {
    "no pictures": "A message of Dapr's carries text alone: its models read a sentence in place of a picture.",
    "one delta": "Dapr answers in one piece: nothing is written of an answer that its provider breaks off.",
    "documented name": "The model knows the search by its documented name, web_search, at these doors.",
    "no applications": "An application of DIAL, with its sign-in, can be talked to through DIAL Core alone.",
    "own files": "An editor's files stay in the project, where the tools of its folder read them.",
    "decisions only": "A coding run has nobody to talk to while it waits: any answer to its question is a decision.",
}


def exceptions(conversation: Conversation, backend: Backend, door: str) -> list[str]:
    """The names of the exceptions that apply to a conversation in a cell."""
    attached = [item["type"] for turn in conversation.turns for item in turn.attachments]
    pictures = any(kind.startswith("image/") for kind in attached)
    pieces = any(turn.unstreamed is not None for turn in conversation.turns)
    applies = {
        "no pictures": pictures and not backend.sees,
        "one delta": pieces and not backend.streams,
        "documented name": conversation.name == SEARCH and door in RENAMING,
        "no applications": conversation.application is not None and door != "DIAL",
        "own files": bool(attached) and door == "editor",
        "decisions only": conversation.name == QUESTION and door == "coding",
    }
    return [name for name, holds in applies.items() if holds]


def driven(conversation: Conversation, door: str) -> bool:
    """Whether the conversation can take place at this door."""
    if conversation.application is not None:
        return door == "DIAL"
    if door == "editor" and any(turn.attachments for turn in conversation.turns):
        return False
    return not (door == "coding" and conversation.name == QUESTION)


CELLS = [(backend, door) for backend in BACKENDS for door in DOORS]
