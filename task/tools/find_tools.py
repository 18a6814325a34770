"""Many tools: those that are sent with every request, and those that `find_tools` finds by what they do."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from functools import lru_cache

from task.conversation.inner import DELEGATE
from task.conversation.messages import Message
from task.llm.window import schema_tokens
from task.permissions.names import ALIASES
from task.search.ranking import Lexical, rarities, tokens
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.models import ToolCallParams

FIND_TOOLS = "find_tools"
RESERVED = frozenset({*ALIASES, DELEGATE, FIND_TOOLS})  # never the name of a server's tool, whatever a turn has
FEW_TOKENS = 1_000  # so many are sent with any window: to find them would cost more steps than it saves tokens
UNKNOWN_WINDOW = 128_000
FOUND, MOST_FOUND = 5, 50  # of one search, and of a conversation, whose window they would fill
MOST_LISTED, LONGEST_NAME, NEAREST, NEAR = 50, 64, 5, 0.5  # names of tools, for a call of one that does not exist
QUERY_CHARS, DESCRIPTION_CHARS, MOST_SERVERS = 300, 400, 100
KEPT_INDEXES = 16
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DESCRIPTION = (
    "Find further tools by what they do; they belong to: {servers}. The best {found} are added to your list of tools, "
    "where you read what they do and how to call them. Search before you say that something cannot be done, and again "
    "in other words if nothing fits."
)
_QUERY = "What the tool does, in a few words of the tools' language, with the service: create an issue in github"
_RESULT = "These are in your list of tools now:\n{names}\nCall the one that fits, or search again in other words."
_NAME = re.compile(r"^- ([a-zA-Z0-9_-]{1,64})$", re.MULTILINE)
_NOTHING = "No tool has any of these words. Use other words, or the name of a service: {servers}."
# What makers of tools call by one word and users by another: the words of a line, or up to a semicolon, count as one.
_ALIKE = """
get read show fetch retrieve view see download; search find query look lookup; list all which
create add make new write insert compose draft prepare; update edit change modify set replace patch
delete remove erase drop; send post message dm; reply answer respond; schedule plan; convert exchange
run execute call invoke start launch; restart rerun retry reboot; kill terminate stop cancel shut
done resolve close complete; status state; issue ticket bug; pr pull; repo repository; wiki confluence
website page url site navigate; mail email; folder directory; file attachment document; picture image photo icon
appointment meeting event calendar; person people user member colleague; permission access share; log trace output
postgres postgresql sql database db; pod kubernetes cluster k8s kubectl; song track music; route direction
refund money; cost spend usage bill price; stock quantity inventory; currency dollar euro
"""
_GROUPS = {
    token: f"alike{number}group"
    for number, group in enumerate(re.split(r"[;\n]", _ALIKE))
    for word in group.split()
    for token in tokens(word)
}


async def within_share(
    tools: Sequence[BaseTool],
    share: float,
    window: Callable[[], Awaitable[int | None]] | None,
    keep: str | None = None,
) -> list[BaseTool]:
    """The tools, and `find_tools` among them where those of servers take more than their share of the model's window.

    `window` gives the tokens of a request, None where they are not known. The tool called `keep` is always sent.
    """
    others = [tool for tool in tools if tool.offered_by and tool.name != keep]
    tokens = schema_tokens([tool.briefed_schema for tool in others])
    limit = (window and await window()) or UNKNOWN_WINDOW
    if tokens <= max(FEW_TOKENS, limit * share) or any(tool.name == FIND_TOOLS for tool in tools):
        return [*tools]
    finder = FindTools(others)
    return [*(tool for tool in tools if tool.name not in finder.names), finder, *others]


class FindTools(BaseTool):
    """Finds the tools that are not sent by the words of a query.

    The result has nothing but names: what servers say of their tools reaches the model in the list of tools only, as
    it does without a search.
    """

    def __init__(self, tools: Sequence[BaseTool]) -> None:
        self.names = frozenset(tool.name for tool in tools)
        self._tools = tools
        self._servers = ", ".join([*dict.fromkeys(tool.offered_by for tool in tools)][:MOST_SERVERS])
        self.spec = ToolSpec(
            FIND_TOOLS,
            _DESCRIPTION.format(servers=self._servers, found=FOUND),
            object_schema("query", query=text(_QUERY)),
            effects=frozenset(),
            offloads=False,
        )

    @staticmethod
    def named(message: Message) -> list[str]:
        """The names in a message that may be the tool's result."""
        return _NAME.findall(message.text()) if message.name == FIND_TOOLS else []

    async def _execute(self, tool_call_params: ToolCallParams) -> str:
        query = (tool_call_params.arguments or self.parse(tool_call_params.tool_call))["query"]
        found = await asyncio.to_thread(best, self._tools, query)  # the first time an index is made
        names = "\n".join(f"- {tool.name}" for tool in found)
        return _RESULT.format(names=names) if found else _NOTHING.format(servers=self._servers)


def best(tools: Sequence[BaseTool], query: str) -> list[BaseTool]:
    """The tools that have words of the query, best first; of those that fit equally the first."""
    index = _index(tuple(map(_words, tools)))
    scores = index.scores(rarities([index], _with_alike(query[:QUERY_CHARS])))
    order = sorted(range(len(tools)), key=lambda place: -scores[place])[:FOUND]
    return [tools[place] for place in order if scores[place] > 0]


def unknown(name: str, known: Sequence[str]) -> str:
    """What to say of a name that no tool has: the tools there are, of many those with the nearest names."""
    name, what = name[:LONGEST_NAME], "Tools"
    if len(known) > MOST_LISTED:
        what, known = "The nearest names", get_close_matches(name, known, NEAREST, NEAR)
    return f"There is no tool {name!r}. {what}: {', '.join(known) or 'none'}."


@lru_cache(maxsize=KEPT_INDEXES)
def _index(texts: tuple[str, ...]) -> Lexical:
    return Lexical(map(_with_alike, texts))


def _words(tool: BaseTool) -> str:
    # A description that goes on and on would fit everything.
    names = f"{tool.name} {tool.offered_by} {' '.join(tool.parameters.get('properties', ()))}"
    return f"{_CAMEL.sub(' ', names).replace('_', ' ')} {tool.description[:DESCRIPTION_CHARS]}"


def _with_alike(text: str) -> str:
    return " ".join((text, *(_GROUPS[word] for word in tokens(text) if word in _GROUPS)))
