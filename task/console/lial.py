"""The documented place of the model interface, which is in `task.reference`."""

from task.reference.lial import LIALManager as LIALManager
from task.reference.lial import LLMAdapterInterface as LLMAdapterInterface
