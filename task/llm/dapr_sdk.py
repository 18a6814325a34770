"""The documented place of the conversion to the types of Dapr's SDK, which is in `task.reference`."""

from task.reference.dapr_sdk import alpha1 as alpha1
from task.reference.dapr_sdk import alpha2 as alpha2
from task.reference.dapr_sdk import answer_of as answer_of
