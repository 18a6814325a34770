"""The documented place of the conversion to the types of Dapr's SDK, which is in `task.reference`."""

from task.reference.dapr_sdk import alpha1, alpha2, answer_of

__all__ = ["alpha1", "alpha2", "answer_of"]
