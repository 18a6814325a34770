"""Pictures from an image deployment, attached to the answer."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

from task.conversation.messages import Message
from task.errors import ToolError
from task.output.sinks import NullChoice
from task.tools.deployment.deployment_tool import DeploymentAccess, DeploymentSpec, DeploymentTool, answered
from task.tools.deployment.relay import Relay
from task.tools.models import ToolCallParams

DEPLOYMENT = "dall-e-3"
SECONDS = 180.0
MADE = "The picture was made as asked and is attached to the answer, where the user sees it."
TITLE = "Generated Image"
_REVISED = "revised prompt"  # its title in answers of DIAL's image adapters
_QUOTED_CHARS = 500
_LINKED = (
    "The deployment {} answered with a link to another host instead of a picture, and such links are not followed. "
    "Tell the user that its operator has to let it store pictures in DIAL."
)
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "size": {"type": "string", "description": "Width and height: 1024x1024 (default), 1792x1024 or 1024x1792"},
    "quality": {"type": "string", "description": "standard (default) or hd"},
    "style": {"type": "string", "description": "vivid (default) or natural"},
}


class ImageGenerationTool(DeploymentTool):
    """Generates a picture with `deployment` of the Core at `endpoint`. Source: API reference, ImageGenerationTool."""

    def __init__(
        self,
        endpoint: str,
        *,
        deployment: str = DEPLOYMENT,
        seconds: float = SECONDS,
        access: DeploymentAccess | None = None,
    ) -> None:
        called = DeploymentSpec(
            "image_generation_tool",
            "Generate a picture from a description. The picture is attached to the answer and shown to the user; do "
            "not repeat its URL. Put everything the picture needs into the prompt: the generator sees nothing else.",
            deployment,
            prompt_description="Description of the image to generate",
            arguments=_ARGUMENTS,
            seconds=seconds,
        )
        super().__init__(endpoint, called, access=access, show_in_stage=True)

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        said, attachments = await self._ask(arguments, tool_call_params, Relay(NullChoice()))
        deployment = self._called.deployment
        # DIAL Chat distinguishes the attachments of a message by their titles.
        pictures = [
            replace(item, title=f"{TITLE} {uuid4().hex[:6]}")
            for item in attachments
            if (item.type or "").startswith("image/")
        ]
        if not pictures:
            quoted = f" It said: {said[:_QUOTED_CHARS]}" if said else ""
            raise ToolError(
                f"The deployment {deployment} made no picture. Ask in other words, or tell the user.{quoted}"
            )
        if not all((item.url or "").startswith("files/") for item in pictures):
            raise ToolError(_LINKED.format(deployment))
        revised = [
            f"**Revised Prompt**: {item.data}"
            for item in attachments
            if item.data and (item.title or "").strip().casefold() == _REVISED
        ]
        return answered("\n\n".join([*revised, said or MADE]), pictures)
