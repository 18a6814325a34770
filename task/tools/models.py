"""What a tool receives: the call, where to write, and the caller."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from task.conversation.messages import Message, ToolCall
from task.conversation.sources import Sources
from task.core_client.models import TOOLS as TOOLS
from task.core_client.models import Caller as Caller
from task.core_client.models import DownloadedFile as DownloadedFile
from task.core_client.models import SignIns as SignIns
from task.core_client.models import Spend as Spend
from task.core_client.models import nobody as nobody
from task.errors import new_reference
from task.output.sinks import ChoiceSink, StageSink
from task.permissions.decisions import Effect as Effect


@dataclass
class ToolCallParams:
    """Everything one execution of a tool receives. Source: API reference, Data Models.

    `arguments` are the parsed, schema-checked arguments of `tool_call`; `BaseTool.execute` sets them if they are None.
    `sources` numbers what the tool finds, for the whole answer.
    `earlier` are the messages of the conversation before the call. After `seconds` the call is stopped.
    `reference` connects a failure of the call to its line in the log. `sign_ins` are those of all calls of the step.
    """

    tool_call: ToolCall
    stage: StageSink
    choice: ChoiceSink
    api_key: str
    conversation_id: str
    arguments: dict[str, Any] | None = None
    caller: Caller | None = None
    sources: Sources = field(default_factory=Sources)
    seconds: float | None = None
    reference: str = field(default_factory=new_reference)
    earlier: Sequence[Message] = ()
    sign_ins: SignIns = field(default_factory=SignIns)

    @property
    def known_caller(self) -> Caller:
        """The caller; where none is given, the key is all that is known of them."""
        return self.caller or Caller(self.api_key, nobody, self.conversation_id)
