"""Every setting of the product: one tree, its sources, and the error messages for wrong values."""

from task.settings.sections import InterpreterSettings as InterpreterSettings
from task.settings.sections import LimitSettings as LimitSettings
from task.settings.sections import McpServerSettings as McpServerSettings
from task.settings.sections import RagSettings as RagSettings
from task.settings.sources import load_settings as load_settings
from task.settings.sources import process_environment as process_environment
from task.settings.tree import PREFIX as PREFIX
from task.settings.tree import Settings as Settings
