"""Skills: folders with instructions for a kind of task, which the model reads when it needs them."""

from task.skills.skill import READ_SKILL as READ_SKILL
from task.skills.skill import Skill as Skill
