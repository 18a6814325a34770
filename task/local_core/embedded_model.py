"""Serve the embedded model as one of local Core's deployments."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from task.errors import ProviderError
from task.llm.transport import new_session
from task.local_core.demo import DemoServed
from task.local_core.relay import Answering
from task.local_model.chat_model import LocalChatModel
from task.local_model.line import Line
from task.local_model.model import EmbeddedModel
from task.local_model.process import ModelProcess
from task.prompts import SYSTEM_PROMPT

logger = logging.getLogger(__name__)


class EmbeddedServed:
    """Answers completions from the embedded model, whose process lives as long as the application."""

    def __init__(self, model: EmbeddedModel) -> None:
        self._model = model
        self._served: DemoServed | None = None

    @property
    def name(self) -> str:
        return self._model.name

    async def lifespan(self, app: web.Application) -> AsyncIterator[None]:
        """The process starts with local Core and ends with it."""
        async with new_session() as session, ModelProcess(self._model, logger.warning) as process:
            model = LocalChatModel(
                session,
                process.endpoint,
                self.name,
                context=self._model.context,
                answer_tokens=self._model.answer_tokens,
                known_prompt=SYSTEM_PROMPT,
                reply_bias=self._model.reply_bias,
                line=Line(self._model.queue),
            )
            self._served = DemoServed(model, self.name)
            warming = asyncio.create_task(self._warm(model, process))
            yield
            warming.cancel()

    async def answer(
        self, request: web.Request, document: Mapping[str, Any], answering: Answering
    ) -> web.StreamResponse:
        assert self._served is not None
        return await self._served.answer(request, document, answering)

    async def _warm(self, model: LocalChatModel, process: ModelProcess) -> None:
        """A process that has just started knows of how conversations begin what an earlier one has kept, or nothing."""
        while True:
            await process.started()
            with suppress(ProviderError, OSError):  # whatever it is, the next question will say it
                if file := self._model.found():
                    await self._keep(model, self._model.state(file))

    async def _keep(self, model: LocalChatModel, state: Path) -> None:
        new = state.with_suffix(".new")  # a whole file or none: processes may start and die at any time
        if await model.warm_up(new.name):
            new.replace(state)
            for other in self._model.store.states(self.name):
                if other != state:
                    other.unlink(missing_ok=True)
