"""Extract what the specification documents by name into a data file: `python -m scripts.documented_names FOLDER`.

The data file maps `module`, `module:Class` and `module:Class.member` to its documented properties; the contract test
compares it with the code. Each document has a reader of its own, because each writes its reference differently.
"""

import ast
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.specification import Section, class_of, definitions, fields_of, sections

DATA = Path(__file__).resolve().parent.parent / "tests" / "contract" / "documented_names.json"
Names = dict[str, dict[str, Any]]
CLIENT_CALL = re.compile(r"\bclient\.(\w+)\(")
EXAMPLE = re.compile(r"^\W*(example|usage)", re.IGNORECASE)


def api_reference(document: str) -> Names:
    """The names of a reference whose classes stand under `### Name` with a line `**Module**: path`."""
    names: Names = {}
    owner = ""
    for section in sections(document):
        if section.level <= 3:
            module = section.value("Module")
            owner = f"{module}:{section.title}" if module else ""
            if module:
                names[module] = {"kind": "module"}
                names[owner] = {"kind": "class", "bases": []}
        if owner:
            _read_member_tables(names, owner, section)
            _read_blocks(names, owner, section)
    return names


def _read_member_tables(names: Names, owner: str, section: Section) -> None:
    kind = {"Attributes": "attribute", "Properties": "property"}.get(section.title.partition(" ")[0])
    if kind is None or not section.rows:
        return
    header, _, *rows = section.rows
    for row in rows:
        entry: dict[str, Any] = {"kind": kind}
        if header[1] == "Value":
            entry["value"] = ast.literal_eval(row[1].split("`")[1])
        names[f"{owner}.{row[0].strip('`')}"] = entry


def _read_blocks(names: Names, owner: str, section: Section) -> None:
    if EXAMPLE.match(section.title):
        return
    for block in section.blocks:
        if block.language == "json" and section.title == "Parameters Schema":
            names[owner]["schema"] = json.loads(block.text)
        elif block.language == "python" and not EXAMPLE.match(block.label):
            if (defined := class_of(block.text)) is not None:
                names[owner]["bases"] = defined[1]
            if fields := fields_of(block.text):
                names[owner]["fields"] = fields
            for found in definitions(block.text):
                static = "staticmethod" in found.decorators
                method = {"kind": "method", "async": found.is_async, "static": static, "parameters": found.parameters}
                names[f"{owner}.{found.name}"] = {"kind": "property"} if "property" in found.decorators else method


def framework_reference(document: str) -> Names:
    """The names of a reference whose classes stand under a heading with lines `**File:**` and `**Class:**`.

    It describes another package; `FRAMEWORK_PLACES` maps each class to its module here. Its exceptions are headings.
    """
    names: Names = {}
    owner, exceptions = "", False
    for section in sections(document):
        if section.level == 2:
            owner, exceptions = "", section.title == "Exceptions"
        if documented := section.value("Class"):
            module = FRAMEWORK_PLACES[documented]
            owner = f"{module}:{documented}"
            names[module] = {"kind": "module"}
            names[owner] = {"kind": "class", "bases": []}
        if owner:
            _read_blocks(names, owner, section)
        elif exceptions and section.level == 4:
            base = [] if section.title == "FrameworkError" else ["FrameworkError"]
            names["task.errors"] = {"kind": "module"}
            names[f"task.errors:{section.title}"] = {"kind": "class", "bases": base}
    return names


def planner_reference(document: str) -> Names:
    """The names of a reference whose modules are headings of level 3 and whose names are headings of level 5.

    It describes another package; `PLANNER_PLACES` maps each module to its place here. A heading with parentheses is a
    function's signature, any other a class.
    """
    names: Names = {}
    module = None
    for section in sections(document):
        title = section.title.strip("`")
        if section.level <= 3:
            module = PLANNER_PLACES.get(title)
        if module is None or section.level != 5:
            continue
        names[module] = {"kind": "module"}
        if "(" in title:
            [function] = definitions(f"def {title}: ...")
            member = {"kind": "function", "async": function.is_async, "parameters": function.parameters}
            names[f"{module}:{function.name}"] = member
        else:
            owner = f"{module}:{title}"
            names[owner] = {"kind": "class", "bases": []}
            _read_blocks(names, owner, section)
    return names


def design_reference(document: str) -> Names:
    """The names of a design that proposes one class and calls methods of a client of Dapr's SDK.

    Of two definitions the later one is the proposal. The class has a module of its own here; the client is Dapr's.
    """
    names: Names = {}
    for block in (block for section in sections(document) for block in section.blocks if block.language == "python"):
        found = class_of(block.text)
        if found is not None and found[0] in DESIGN_PLACES:
            module = DESIGN_PLACES[found[0]]
            names[module] = {"kind": "module"}
            names[f"{module}:{found[0]}"] = {"kind": "class", "bases": found[1], "fields": fields_of(block.text)}
        for method in CLIENT_CALL.findall(block.text):
            names[f"dapr.clients:DaprClient.{method}"] = {"kind": "attribute"}
    return names


PLANNER_PLACES = {
    "agent.core.config": "task.coding.settings",
    "agent.core.planner": "task.coding.planner",
    "agent.core.executor": "task.coding.executor",
    "agent.tools.fs": "task.tools.workspace.fs",
    "agent.tools.shell": "task.tools.workspace.shell",
    "agent.tools.python_exec": "task.tools.workspace.python_exec",
}
FRAMEWORK_PLACES = {
    "ConfigurationManager": "task.console.configuration",
    "DCMManager": "task.context.dcm_manager",
    "ErrorHandler": "task.console.error_handler",
    "FrameworkController": "task.console.controller",
    "LIALManager": "task.console.lial",
    "LLMAdapterInterface": "task.console.lial",
    "MessageManager": "task.conversation.message_manager",
    "TEPSManager": "task.console.teps",
    "ToolHandlerInterface": "task.console.teps",
    "ToolRequestHandler": "task.console.tool_request_handler",
    "UserInterfaceManager": "task.console.ui_manager",
}
DESIGN_PLACES = {"ConversationInput": "task.llm.conversation_input"}
READERS: dict[str, Callable[[str], Names]] = {
    "000": api_reference,
    "002": framework_reference,
    "003": planner_reference,
    "004": design_reference,
}


def extract(folder: Path) -> Names:
    """All names of the documents that have a reader, each with the number of the document that it comes from.

    Raises:
        SystemExit: a document is missing or there are several with its number.
    """
    names: Names = {}
    for number, reader in READERS.items():
        found = sorted(folder.glob(f"{number}-*.md"))
        if len(found) != 1:
            raise SystemExit(f"{folder} must hold exactly one document {number}-*.md.")
        for name, entry in reader(found[0].read_text(encoding="utf-8")).items():
            names[name] = {"source": number, **entry}
    return names


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    names = extract(Path(arguments[0]))
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(names.items()))
    DATA.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{len(names)} documented names.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
