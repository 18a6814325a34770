"""A front door of a few lines: a chat over a Unix socket. `/session ID` goes on in that session, `/stop` ends a run."""

import asyncio
import json
import sys

from task.conversation.messages import user
from task.errors import AgentError
from task.product import Profile, Services, opened
from task.runs.request import RunCaller, RunOptions
from task.runs.runner import Runner
from task.runs.table import Preparing
from task.settings import Settings
from task.store.records import Run

ME = RunCaller("toy")


class ToyDoor:
    def __init__(self, services: Services, profile: Profile) -> None:
        self.runner = Runner(services, profile, detach_seconds=30)
        self.preparing, self.options = Preparing(services, profile), RunOptions("toy", profile.model)
        self.tasks: set[asyncio.Task[None]] = set()

    async def chat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session_id, run = None, None
        async for line in reader:
            text = line.decode().strip()
            if text.startswith("/session "):
                session_id = text.removeprefix("/session ")
            elif text == "/stop" and run is not None:
                await self.runner.stop(ME.owner, run.run_id)
            else:
                try:
                    run = await self.start(text, session_id)
                except AgentError as error:
                    writer.write(json.dumps({"type": "refused", "text": str(error)}).encode() + b"\n")
                    continue
                session_id = run.session_id
                self.tasks.add(asyncio.create_task(self.show(run, writer)))

    async def start(self, text: str, session_id: str | None) -> Run:
        return await self.runner.start(await self.preparing.in_session(ME, [user(text)], self.options, session_id))

    async def show(self, run: Run, writer: asyncio.StreamWriter) -> None:
        async for event in self.runner.events(ME.owner, run.run_id):
            writer.write(json.dumps(event.as_dict()).encode() + b"\n")


async def serve(path: str, settings: str) -> None:
    door = ToyDoor(*opened(Settings.model_validate(json.loads(settings))))
    server = await asyncio.start_unix_server(door.chat, path)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
