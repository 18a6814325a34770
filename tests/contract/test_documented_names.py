"""Every name that the specification documents exists as documented; the comparison sees every kind of difference."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts.documented_names import api_reference, design_reference, framework_reference, planner_reference
from tests.support.documented import differences

HERE = Path(__file__).parent
NAMES: dict[str, dict[str, Any]] = json.loads((HERE / "documented_names.json").read_text(encoding="utf-8"))
LISTED = tomllib.loads((HERE / "deviations.toml").read_text(encoding="utf-8"))
NOT_YET: list[str] = LISTED["not_yet"]
DEVIATIONS: dict[str, str] = {row["name"]: row["reason"] for row in LISTED.get("deviation", [])}


def below(listed: str) -> list[str]:
    return [name for name in NAMES if name == listed or name.startswith((f"{listed}:", f"{listed}."))]


TO_COME = {name for listed in NOT_YET for name in below(listed)}


BUILT = sorted(name for name in NAMES if name not in TO_COME and name not in DEVIATIONS)


@pytest.mark.parametrize("name", BUILT)
def test_it_is_as_documented(name: str) -> None:
    assert differences(name, NAMES[name]) == []


def test_every_listed_deviation_still_deviates_and_says_why() -> None:
    for name, reason in DEVIATIONS.items():
        assert differences(name, NAMES[name]), f"{name} is as documented; remove its row"
        assert len(reason.split()) > 5, f"{name} needs a reason"


def test_what_is_listed_as_not_built_is_documented_and_not_there() -> None:
    for name in NOT_YET:
        assert below(name)
        assert all(differences(documented, NAMES[documented]) for documented in below(name))


def test_the_numbers_of_deviations_and_of_names_to_come_do_not_grow_unnoticed() -> None:
    assert len(NAMES) == 187
    assert len(DEVIATIONS) == 2
    assert not TO_COME


MANUAL = """
## Core
### Greeter

**Module**: `demo.greeter`

```python
class Greeter(ABC):
    def __init__(
        self,
        name: str,
        tone: Optional[str] = None
    )
```

#### Attributes

| Attribute | Type | Description |
|---|---|---|
| `name` | `str` | Who greets |

#### Properties

| Property | Value |
|---|---|
| `loud` | `False` |

#### Parameters Schema

```json
{"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
```

##### `greet()`

```python
@staticmethod
async def greet(
    to: tuple[str, int],
    times: int = 2
) -> str
```

**Example:**

```python
def not_documented(): ...
```

### Params

**Module**: `demo.models`

```python
@dataclass
class Params:
    to: str           # whom
    times: int = 2    # how often
```

## Elsewhere

```python
class NoModule:
    def method(self)
```
"""


def test_a_manual_becomes_names() -> None:
    names = api_reference(MANUAL)
    method = {"kind": "method", "async": True, "static": True, "parameters": (("to", None), ("times", "2"))}
    assert sorted(names) == [
        "demo.greeter",
        "demo.greeter:Greeter",
        "demo.greeter:Greeter.__init__",
        "demo.greeter:Greeter.greet",
        "demo.greeter:Greeter.loud",
        "demo.greeter:Greeter.name",
        "demo.models",
        "demo.models:Params",
    ]
    assert names["demo.greeter:Greeter"]["bases"] == ["ABC"]
    assert names["demo.greeter:Greeter"]["schema"]["required"] == ["to"]
    assert names["demo.greeter:Greeter.__init__"]["parameters"] == (("name", None), ("tone", "None"))
    assert names["demo.greeter:Greeter.greet"] == method
    assert names["demo.greeter:Greeter.loud"] == {"kind": "property", "value": False}
    assert names["demo.greeter:Greeter.name"] == {"kind": "attribute"}
    assert names["demo.models:Params"]["fields"] == [("to", None), ("times", "2")]


class Example:
    """What the comparison is tried on."""

    def __init__(self, endpoint: str, *, seam: int = 0) -> None:
        self.endpoint = endpoint + str(seam)

    @property
    def name(self) -> str:
        return "example"

    @property
    def parameters(self) -> dict[str, Any]:
        return {"properties": {"page": {"type": "integer", "default": 1}}, "required": ["page"]}

    async def ask(self, question: str, tries: int = 3) -> str:
        return question * tries

    @staticmethod
    def plain(value: str) -> str:
        return value


def method(parameters: list[tuple[str, str | None]], *, is_async: bool = True, static: bool = False) -> dict[str, Any]:
    return {"kind": "method", "async": is_async, "static": static, "parameters": parameters}


@pytest.mark.parametrize(
    ("member", "entry", "complaint"),
    [
        (".ask", method([("question", None), ("tries", "3")]), None),
        (".ask", method([("question", None)]), None),
        (".ask", method([("tries", "3"), ("question", None)]), "parameter 1 is not tries"),
        (".ask", method([("question", None), ("tries", "4")]), "tries defaults to 3, documented is 4"),
        (".ask", method([("question", None), ("tries", "3"), ("more", None)]), "parameter 3 is not more"),
        (".ask", method([]), "question is required and not documented"),
        (".ask", method([("question", None), ("tries", "3")], is_async=False), "it is asynchronous"),
        (".ask", method([("question", None), ("tries", "3")], static=True), "it is not a static method"),
        (".plain", method([("value", None)], is_async=False, static=True), None),
        (".__init__", method([("endpoint", None)], is_async=False), None),
        (".__init__", method([("endpoint", None), ("seam", "0")], is_async=False), "seam cannot be given by position"),
        (".gone", method([]), "is missing"),
        (".endpoint", {"kind": "attribute"}, None),
        (".state", {"kind": "attribute"}, "no method assigns it"),
        (".name", {"kind": "property", "value": "example"}, None),
        (".name", {"kind": "property", "value": "other"}, "documented is 'other'"),
        ("", {"kind": "class", "bases": ["ABC"]}, "it does not derive from ABC"),
        ("", {"kind": "class", "bases": [], "schema": {"properties": {}, "required": []}}, "required is ['page']"),
        (
            "",
            {"kind": "class", "bases": [], "schema": {"properties": {"page": {"default": 2}}, "required": ["page"]}},
            "documented is {'default': 2}",
        ),
    ],
)
def test_a_difference_is_described_in_one_sentence(member: str, entry: dict[str, Any], complaint: str | None) -> None:
    found = differences(f"{__name__}:Example{member}", entry)
    assert complaint in found[0] if complaint else found == []


def test_a_missing_module_is_a_difference() -> None:
    (line,) = differences("task.no_such_module", {"kind": "module"})
    assert "task.no_such_module is missing" in line


FRAMEWORK = """
## Message Manager

**File:** `message_manager.py`
**Class:** `MessageManager`

### Constructor

```python
def __init__(self, config: Optional[Dict[str, Any]] = None)
```

### Methods

#### add_user_message()

```python
def add_user_message(self, content: str) -> None
```

## Data Structures

### Message

```python
def no_method_of_it(self): ...
```

## Exceptions

### Base Exceptions

#### FrameworkError

#### ConfigError
"""


def test_the_framework_reference_is_read_with_the_places_its_classes_have_here() -> None:
    names = framework_reference(FRAMEWORK)
    manager = "task.conversation.message_manager:MessageManager"
    assert set(names) == {
        "task.conversation.message_manager", manager, f"{manager}.__init__", f"{manager}.add_user_message",
        "task.errors", "task.errors:FrameworkError", "task.errors:ConfigError",
    }  # fmt: skip
    assert names[f"{manager}.__init__"]["parameters"] == (("config", "None"),)
    assert names["task.errors:ConfigError"]["bases"] == ["FrameworkError"]


PLANNER = """
### `agent.core.planner`

#### Classes

##### `Plan`

```python
@dataclass
class Plan:
    plan: list[str]      # steps
    tests: list[str]
```

##### `get_plan(task: str, s: Settings | None = None) -> Plan`

### `agent.core.orchestrator`

##### `run`

```bash
python3 -m agent.core.orchestrator run [OPTIONS] TASK
```
"""


def test_the_planners_reference_is_read_with_the_places_its_modules_have_here() -> None:
    names = planner_reference(PLANNER)
    assert set(names) == {"task.coding.planner", "task.coding.planner:Plan", "task.coding.planner:get_plan"}
    assert names["task.coding.planner:Plan"]["fields"] == [("plan", None), ("tests", None)]
    assert names["task.coding.planner:get_plan"]["parameters"] == (("task", None), ("s", "None"))
    assert names["task.coding.planner:get_plan"]["async"] is False


def documented_function(task: str, s: int | None = None) -> str:
    return task * (s or 1)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"async": False, "parameters": [("task", None), ("s", "None")]}, None),
        ({"async": True, "parameters": [("task", None)]}, "it is not asynchronous"),
        ({"async": False, "parameters": [("task", None), ("s", "1")]}, "s defaults to None, documented is 1"),
        ({"async": False, "parameters": []}, "task is required and not documented"),
    ],
)
def test_a_functions_difference_is_described(entry: dict[str, Any], complaint: str | None) -> None:
    found = differences(f"{__name__}:documented_function", {"kind": "function", **entry})
    assert complaint in found[0] if complaint else found == []


DESIGN = """
## Current

```python
@dataclass
class ConversationInput:
    content: str
```

## Proposed

```python
@dataclass
class ConversationInput:
    content: str
    name: Optional[str] = None  # of the tool
```

## Usage

```python
response = client.converse(inputs=[])
other.method()
```
"""


def test_the_designs_proposal_and_its_calls_of_the_client_are_read() -> None:
    names = design_reference(DESIGN)
    owner = "task.llm.conversation_input:ConversationInput"
    assert set(names) == {"task.llm.conversation_input", owner, "dapr.clients:DaprClient.converse"}
    assert names[owner]["fields"] == [("content", None), ("name", "None")]
