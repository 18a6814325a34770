"""The documented place of StageProcessor, which lives beside the sinks it opens and closes."""

from task.output.sinks import StageProcessor as StageProcessor
from task.output.sinks import StageStatus as StageStatus
