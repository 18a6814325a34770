"""The documented place of StageProcessor, which lives beside the sinks it opens and closes."""

from task.conversation.sinks import StageProcessor as StageProcessor
from task.conversation.sinks import StageStatus as StageStatus
