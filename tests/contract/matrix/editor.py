"""The editor door of the matrix: `dial-agent acp`, with the SDK's own client and a user in front of it."""

import asyncio
from typing import Any

import acp

from tests.contract.matrix.doors import calls_and_results, last_turn
from tests.contract.matrix.projection import Outcome, is_decision
from tests.support.acp_editor import SECONDS, Answer, Editor, EditorSession
from tests.support.stores import opened

OWNER = "local"
BUTTONS = {"approve": "allow_once", "deny": "reject_once"}


class EditorDoor:
    """One conversation in a running editor. Decisions without a reason are buttons of its dialogs; for all other words
    the user closes these."""

    def __init__(self, editor: Editor) -> None:
        self._editor, self._client = editor, editor.client
        self._session: EditorSession | None = None
        self._prompt: asyncio.Task[Any] | None = None

    async def attach(self, name: str, content: bytes, content_type: str) -> str:
        raise NotImplementedError("an editor's files stay where they are")

    async def say(self, text: str) -> Outcome:
        self._session = self._session or await self._editor.open(self._editor.home)
        open_dialogs = len(self._client.shown.asked)
        self._client.shown = Answer()
        if self._prompt is not None and not self._prompt.done():
            words = [part.split()[0] for part in text.split(", ")]
            if is_decision(text) and " because " not in text and len(words) >= open_dialogs:
                for word in words:
                    self._client.later.put_nowait(BUTTONS[word])
                return await self._outcome(len(words) - 1)
            while not self._prompt.done():
                self._client.later.put_nowait(None)
                await asyncio.wait({self._prompt}, timeout=0.2)
            while not self._client.later.empty():
                self._client.later.get_nowait()
            self._client.shown = Answer()
        said = {"session_id": self._session.session_id, "prompt": [acp.text_block(text)]}
        self._prompt = asyncio.create_task(self._session.connection.prompt(**said))
        return await self._outcome()

    async def _outcome(self, dialogs: int = 0) -> Outcome:
        """What there is when the prompt has ended, or shows another dialog than these."""
        assert self._prompt is not None
        assert self._session is not None
        shown, prompt = self._client.shown, self._prompt
        asked = asyncio.create_task(self._session.until(lambda seen: len(seen.asked) > dialogs))
        done, _ = await asyncio.wait({prompt, asked}, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        assert done, "nothing was shown"
        failed = prompt.done() and prompt.exception() is not None
        async with opened(f"sqlite:///{self._editor.home}/data/store.db", chores=False) as store:
            session = await store.sessions.get(OWNER, self._session.session_id)
            waiting = await store.approvals.list(OWNER, session_id=session.session_id)
        calls, results = calls_and_results(last_turn([message.as_dict() for message in session.messages]))
        waits, codes = [item.tool for item in waiting], [item.code for item in waiting]
        return Outcome(shown.text, list(calls.values()), results, waits, codes, failed)
