"""Convert inputs to the types of Dapr's Python SDK and its answers back, for programs that use its client."""

from collections.abc import Iterable

from dapr.clients.grpc import conversation as sdk

from task.conversation.messages import Message, Role
from task.reference.conversation_input import ConversationInput, tools_of


def alpha1(inputs: Iterable[ConversationInput]) -> list[sdk.ConversationInput]:
    """The `inputs` of `converse_alpha1`, which knows texts only.

    Raises:
        ValueError: an input has tools, calls or the result of one.
    """
    given = list(inputs)
    if any(each.tools or each.tool_calls or each.tool_call_id for each in given):
        raise ValueError("Alpha1 of Dapr's Conversation API has no tools. Use alpha2().")
    return [sdk.ConversationInput(each.content or "", each.role, each.scrub_pii) for each in given]


def alpha2(
    inputs: Iterable[ConversationInput],
) -> tuple[list[sdk.ConversationInputAlpha2], list[sdk.ConversationTools]]:
    """The `inputs` and the `tools` of `converse_alpha2`.

    Raises:
        ValueError: a role is unknown, or a result does not name its call.
    """
    given = list(inputs)
    converted = [sdk.ConversationInputAlpha2([_message(each.message())], each.scrub_pii) for each in given]
    tools: list[sdk.ConversationTools] = []
    for tool in tools_of(given):
        name, about, schema = (tool["function"].get(field) for field in ("name", "description", "parameters"))
        tools.append(sdk.ConversationTools(sdk.ConversationToolsFunction(name, about, schema)))
    return converted, tools


def answer_of(response: sdk.ConversationResponseAlpha2) -> ConversationInput:
    """The whole answer, which Dapr may split into several outputs, as one message of the assistant."""
    messages = [choice.message for output in response.outputs for choice in output.choices]
    calls = [
        {"id": call.id, "type": "function", "function": {"name": made.name, "arguments": made.arguments}}
        for message in messages
        for call in message.tool_calls
        if (made := call.function)
    ]
    text = "\n".join(message.content for message in messages if message.content)
    return ConversationInput(text or None, str(Role.ASSISTANT), tool_calls=calls or None)


def _message(message: Message) -> sdk.ConversationMessage:
    text = message.text()
    content = [sdk.ConversationMessageContent(text)]
    match message.role:
        case Role.SYSTEM | Role.DEVELOPER:  # Dapr makes a user's message of a developer's
            return sdk.ConversationMessage(of_system=sdk.ConversationMessageOfSystem(message.name, content))
        case Role.USER:
            return sdk.ConversationMessage(of_user=sdk.ConversationMessageOfUser(message.name, content))
        case Role.ASSISTANT:
            made = sdk.ConversationToolCallsOfFunction
            calls = [
                sdk.ConversationToolCalls(call.id, made(call.name, call.function.arguments))
                for call in message.tool_calls
            ]
            of_assistant = sdk.ConversationMessageOfAssistant(message.name, content if text else [], calls)
            return sdk.ConversationMessage(of_assistant=of_assistant)
        case Role.TOOL:
            of_tool = sdk.ConversationMessageOfTool(message.tool_call_id, message.name or "", content)
            return sdk.ConversationMessage(of_tool=of_tool)
