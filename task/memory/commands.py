"""`/memory` in words, as Chat and the console take it: shown, switched on and off, edited, exported, deleted."""

from task.core_client.models import Caller
from task.errors import AgentError
from task.memory.memories import Memories, Memory
from task.permissions.icerc import fenced, words
from task.store.records import json_bytes

COMMAND = "/memory"
LISTED = 100
FORBIDDEN = "There is no memory here: the operator has not allowed it (setting `memory.enabled`)."
USAGE = (
    f"`{COMMAND} add TEXT` keeps a fact, `{COMMAND} edit k7f3 TEXT` changes one, `{COMMAND} delete k7f3` deletes it. "
    f"`{COMMAND} delete all` deletes all and your consent, `{COMMAND} export` shows all as JSON, `{COMMAND} off` "
    "stops the memory."
)
CONSENT = (
    f"The memory is off. `{COMMAND} on` is your consent to it: the agent may then propose to keep facts about you, "
    "asks you about each one, and gives those that fit to the model in later conversations. You see, change and delete "
    f"them with `{COMMAND}`."
)


async def answered(memories: Memories | None, caller: Caller, door: str, line: str) -> str:
    """The answer to a line `/memory …`, in Markdown; a failure is a sentence."""
    if memories is None:
        return FORBIDDEN
    _, action, rest = [*line.split(None, 2), "", ""][:3]
    which, _, text = (rest := rest.strip()).partition(" ")
    try:
        memory = await memories.of(caller, door)
        match action.lower(), which, text:
            case "", _, _:
                known = await memory.load()
            case ("on" | "off") as chosen, "", _:
                known = await memory.change(lambda known: known.with_consent(chosen == "on", memory.now()))
            case "add", str(), _ if rest:
                about = memory.now(), f"the user, {door}", memory.application
                known = await memory.change(lambda known: known.with_fact(rest, *about))
            case "export", "", _:
                return fenced(json_bytes(await memory.load()).decode())
            case "delete", "all", "":
                await memory.delete()
                return f"Deleted: all facts, and your consent. {CONSENT}"
            case ("delete", str(), "") | ("edit", _, str()) if which and bool(text) is (action.lower() == "edit"):
                known = await memory.change(lambda known: known.edited(which, text or None, memory.now()))
            case _:
                return f"I cannot read this. {USAGE}"
    except AgentError as error:
        return str(error)
    return listing(known)


def listing(memory: Memory) -> str:
    """The memory for its user: the consent, and the newest facts."""
    count = len(memory.facts)
    if not memory.consented:
        kept = f" Your {count} facts are kept, and not used: `{COMMAND} delete all` deletes them." if count else ""
        return f"{CONSENT}{kept}"
    lines = [f"The memory is on, with your consent of {memory.consented[:10]}. Facts: {count}.\n"]
    for fact in reversed(memory.facts[-LISTED:]):
        where = f", only in {words(fact.scope)}" if fact.scope else ""
        lines.append(f"- **{fact.id}** {words(fact.text)} ({fact.date[:10]}, {words(fact.source)}{where})")
    if count > LISTED:
        lines.append(f"- … and {count - LISTED} older ones, which `{COMMAND} export` shows.")
    return "\n".join([*lines, f"\n{USAGE}"])
