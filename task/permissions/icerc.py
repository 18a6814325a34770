"""ICERC: the card a person decides by. Intent and expectation are the model's words, the rest is computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

from task.permissions.visible import spelt_out, visible

Level = Literal["low", "medium", "high"]

WORDS = 500  # characters of the model's own words that a card shows
COMMAND_HEAD, COMMAND_TAIL = 1_600, 400
_MARKS = re.compile(r"([\\`*_\[\]()<>#!|~])")
_PARTS = re.compile(
    r"^[\s*#>-]*(intent|command|expected[ _]outcome|risk[ _]assessment|please confirm)\b[^:\n]*:",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class RiskAssessment:
    level: Level = "medium"
    scope: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True)
class Brief:
    """What the model says of its own call; never more than words."""

    intent: str = ""
    expected_outcome: str = ""

    @classmethod
    def read(cls, brief: Any) -> Brief:
        """The brief as a model sends it: as documented, as the text of a whole card, or as plain words."""
        if isinstance(brief, Mapping):
            told = cast("Mapping[str, Any]", brief)
            return cls(_words(told.get("intent")), _words(told.get("expected_outcome")))
        text = _words(brief)
        parts = list(_PARTS.finditer(text))
        if not parts:
            return cls(intent=text)
        ends = [*(part.start() for part in parts[1:]), len(text)]
        told = {_key(part[1]): text[part.end() : end].strip(" *_\n") for part, end in zip(parts, ends, strict=True)}
        return cls(told.get("intent", ""), told.get("expected_outcome", ""))


@dataclass(frozen=True, slots=True)
class ICERC:
    """Intent, Command, Expected outcome, Risk assessment, Confirmation. Source: Framework Core reference, ICERC."""

    intent: str
    command: str
    expected_outcome: str
    risk_assessment: RiskAssessment = field(default_factory=RiskAssessment)

    def as_dict(self) -> dict[str, Any]:
        """The documented shape."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ICERC:
        """The card of `as_dict`.

        Raises:
            ValueError: it is none.
        """
        try:
            risk = cast("Mapping[str, Any]", data["risk_assessment"])
            level = risk["level"]
            if level not in ("low", "medium", "high"):
                raise ValueError("a card's risk is low, medium or high")
            return cls(
                str(data["intent"]),
                str(data["command"]),
                str(data["expected_outcome"]),
                RiskAssessment(level, str(risk["scope"]), str(risk["details"])),
            )
        except (KeyError, TypeError) as error:
            raise ValueError("this is not a card") from error

    def markdown(self) -> str:
        """The card as Markdown in which nothing that the model wrote can act as Markdown."""
        risk = self.risk_assessment
        lines = [
            f"**Intent (the model's words):** {words(self.intent) or 'not given'}",
            f"**Command:**\n\n{fenced(shortened(self.command))}",
            f"**Expected outcome (the model's words):** {words(self.expected_outcome) or 'not given'}",
            f"**Risk: {risk.level.upper()}** – {words(risk.scope)}",
        ]
        details = [f"- {words(line)}" for line in risk.details.splitlines() if line.strip()]
        return "\n\n".join([*lines, *(["\n".join(details)] if details else [])]) + "\n"


def words(text: str) -> str:
    """One line of plain words: hidden characters spelt out, Markdown's marks escaped, at most 500 characters."""
    line = " ".join(visible(text).split())
    if len(line) > WORDS:
        line = f"{line[:WORDS]} […]"
    return _MARKS.sub(r"\\\1", line).replace("://", "\\[://\\]")  # not a link, in any renderer


def fenced(text: str) -> str:
    """The text in a code fence that nothing in it can close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{spelt_out(text)}\n{fence}"


def shortened(text: str) -> str:
    """Head and tail of a long text, with the number of characters between them."""
    left_out = len(text) - COMMAND_HEAD - COMMAND_TAIL
    if left_out <= 0:
        return text
    return f"{text[:COMMAND_HEAD]}\n[… {left_out:,} characters are not shown …]\n{text[-COMMAND_TAIL:]}"


def _words(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _key(name: str) -> str:
    return name.lower().replace(" ", "_")
