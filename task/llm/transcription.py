"""A spoken recording as text, by a chat model that takes sound as an attachment."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from task.conversation.messages import Attachment, CustomContent, Message, Role
from task.llm.accumulator import Accumulator
from task.llm.base import ChatModel, ModelOptions

REQUEST = "Write down word for word what is said in the attached recording. Answer with these words only."


@dataclass(frozen=True, slots=True)
class Recording:
    content: bytes
    type: str

    @property
    def filename(self) -> str:
        return f"recording.{self.type.rpartition('/')[2]}"  # servers recognise the format by the name


async def transcribed_by(model: ChatModel, recording: Recording) -> str:
    """The words of the recording. DIAL Core passes on chat completions, but not `/audio/transcriptions`.

    Raises:
        ProviderError: the model does not answer.
    """
    data = base64.b64encode(recording.content).decode()
    sound = CustomContent((Attachment(recording.type, recording.filename, data=data),))
    answer = Accumulator()
    async for delta in model.stream([Message(Role.USER, REQUEST, custom_content=sound)], (), ModelOptions()):
        answer.add(delta)
    return answer.text.strip()
