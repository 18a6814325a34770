"""The composition root: what one process shares and what its agent is, from the settings."""

from task.product.backends import Backend as Backend
from task.product.opening import check as check
from task.product.opening import opened as opened
from task.product.profile import Profile as Profile
from task.product.profile import Services as Services
