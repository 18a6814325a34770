"""ICERC: the card that the user decides by, and how it shows text that may try to deceive."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, Self, cast

Level = Literal["low", "medium", "high"]

WORDS = 500  # characters of the model's own words that a card shows
COMMAND_HEAD, COMMAND_TAIL = 1_600, 400
_MARKS = re.compile(r"([\\`*_\[\]()<>#!|~])")
_PARTS = re.compile(
    r"^[ \t\r*#>-]*+(intent|command|expected[ _]outcome|risk[ _]assessment|please confirm)\b[^:\n]*+:",
    re.IGNORECASE | re.MULTILINE,
)
_MAY_CLOSE_CODE = re.compile(r"^ {0,3}(?=(?:`{3}|~{3})[`~ \t]*$)", re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)")

_PLAIN = re.compile(r"[\n\t\x20-\x7e]*")
_WORDS = re.compile(r"\w+")
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "FULLWIDTH", "MATHEMATICAL", "SMALL CAPITAL")
_EMOJI_STYLE = "\ufe0f"
# Letters of other scripts that look like Latin ones in most fonts. Source: Unicode UTS #39, confusables
_LOOK_ALIKE = frozenset("аеорсухіјѕһԁԛԝɡАВЕКМНОРСТХІЈЅοανικΑΒΕΖΗΙΚΜΝΟΡΤΥΧѵ")


@dataclass(frozen=True, slots=True)
class RiskAssessment:
    level: Level = "medium"
    scope: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True)
class Brief:
    """The model's own description of its call: a claim, never a fact."""

    intent: str = ""
    expected_outcome: str = ""

    @classmethod
    def read(cls, brief: object) -> Self:
        """The brief as a model sends it: as documented, as the text of a whole card, or as plain words."""
        if isinstance(brief, Mapping):
            fields = cast("Mapping[str, object]", brief)
            return cls(_stripped(fields.get("intent")), _stripped(fields.get("expected_outcome")))
        text = _stripped(brief)
        parts = list(_PARTS.finditer(text))
        if not parts:
            return cls(intent=text)
        ends = [*(part.start() for part in parts[1:]), len(text)]
        fields = {
            part[1].lower().replace(" ", "_"): text[part.end() : end].strip(" *_\n")
            for part, end in zip(parts, ends, strict=True)
        }
        return cls(fields.get("intent", ""), fields.get("expected_outcome", ""))


@dataclass(frozen=True, slots=True)
class ICERC:
    """Intent, Command, Expected outcome, Risk assessment, Confirmation. Source: Framework Core reference, ICERC."""

    intent: str
    command: str
    expected_outcome: str
    risk_assessment: RiskAssessment = field(default_factory=RiskAssessment)

    def as_dict(self) -> dict[str, object]:
        """The documented shape."""
        return asdict(self)

    def displayed(self) -> dict[str, object]:
        """The same for pages that show it as plain text: nothing is hidden, and the model's words are one line."""
        own = {"intent": plain(self.intent), "expected_outcome": plain(self.expected_outcome)}
        return {**self.as_dict(), **own, "command": spelt_out(self.command)}

    def rows(self) -> dict[str, str]:
        """The card by its labels, for a terminal: no command is cut at its end only, and nothing acts on it."""
        risk = self.risk_assessment
        return {
            "Command": spelt_out(shortened(self.command)),
            "Why": plain(self.intent),
            "Expected": plain(self.expected_outcome),
            "Risk": "\n".join([f"{risk.level}: {plain(risk.scope)}", *map(plain, risk.details.splitlines())]),
        }

    def markdown(self, reason: str = "") -> str:
        """The card as Markdown in which nothing that the model wrote can act as Markdown; `reason`: of the question."""
        risk = self.risk_assessment
        lines = [
            f"**Intent (the model's words):** {words(self.intent) or 'not given'}",
            f"**Command:**\n\n{fenced(shortened(self.command))}",
            f"**Expected outcome (the model's words):** {words(self.expected_outcome) or 'not given'}",
            f"**Risk: {risk.level.upper()}** – {words(risk.scope)}",
        ]
        details = [f"- {words(line)}" for line in risk.details.splitlines() if line.strip()]
        because = f"\nI ask because {words(reason)}.\n" if reason else ""
        return "\n\n".join([*lines, *(["\n".join(details)] if details else [])]) + f"\n{because}"


def plain(text: str) -> str:
    """One line of plain text: hidden characters spelt out, at most 500 characters."""
    line = " ".join(visible(text).split())
    return line if len(line) <= WORDS else f"{line[:WORDS]} […]"


def words(text: str) -> str:
    """One line of plain text in Markdown: like `plain`, with its marks escaped."""
    return _MARKS.sub(r"\\\1", plain(text)).replace("://", "\\[://\\]")  # not a link, in any renderer


def fenced(text: str) -> str:
    """The text in a code fence that it cannot close, also where it stands in a fence that was left open before.

    A fence with a word does not close another, and neither does a line that is indented by four spaces.
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{_MAY_CLOSE_CODE.sub('    ', spelt_out(text))}\n{fence}"


def shortened(text: str) -> str:
    """Head and tail of a long text, with the number of characters between them."""
    left_out = len(text) - COMMAND_HEAD - COMMAND_TAIL
    if left_out <= 0:
        return text
    return f"{text[:COMMAND_HEAD]}\n[… {left_out:,} characters are not shown …]\n{text[-COMMAND_TAIL:]}"


def _stripped(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def mismatch(card: ICERC, result: str, *, failed: bool) -> str:
    """A sentence about how the result differs from what the card announced; empty if it does not visibly.

    Compared is only what needs no understanding: a call that failed, and numbers of which none agrees.
    """
    expected = words(card.expected_outcome)
    if failed:
        return f"The call failed. Expected was: {expected or 'that it succeeds'}"
    announced, found = _numbers(card.expected_outcome) - _numbers(card.command), _numbers(result)
    if announced and found and not announced & found:
        expected, actual = ", ".join(sorted(announced)[:3]), ", ".join(sorted(found)[:3])
        return f"The outcome is not what was expected: announced {expected}, the result says {actual}."
    return ""


def _numbers(text: str) -> set[str]:
    return {found.replace(",", "") for found in _NUMBER.findall(text)}


def visible(text: str) -> str:
    """The text with control, format, private and odd space characters as `\\u202e`; letters of all scripts stay."""
    return text if _PLAIN.fullmatch(text) else "".join(map(_shown, text))


def spelt_out(text: str) -> str:
    """Like `visible`, with letters that only look like Latin ones spelt out too: for commands and hosts."""
    shown = visible(text)
    if shown.isascii():
        return shown

    def spelt(word: re.Match[str]) -> str:
        letters = (mark if mark.isascii() else f"\\u{ord(mark):04x}" for mark in word[0])
        return "".join(letters) if _disguised(word[0]) else word[0]

    return _WORDS.sub(spelt, shown)


def tricks(text: str) -> list[str]:
    """What in the text a reader cannot see or would mistake for something else."""
    if _PLAIN.fullmatch(text):
        return []
    found = ["hidden or reordering characters"] if visible(text) != text else []
    if any(map(_disguised, _WORDS.findall(text))):
        found.append("look-alike letters of another alphabet")
    return found


def _shown(mark: str) -> str:
    if mark in "\n\t " or mark == _EMOJI_STYLE:
        return mark
    kind = unicodedata.category(mark)
    if kind[0] == "C" or kind in ("Zs", "Zl", "Zp") or 0xE0100 <= ord(mark) <= 0xE01EF or 0xFE00 <= ord(mark) <= 0xFE0E:
        return f"\\x{ord(mark):02x}" if ord(mark) < 256 else f"\\u{ord(mark):04x}"
    return mark


def _disguised(word: str) -> bool:
    # A word of two alphabets, or one of another alphabet of which every letter looks Latin.
    if word.isascii():
        return False
    names = [unicodedata.name(mark, "") for mark in word if mark.isalpha()]
    scripts = {script for name in names for script in _SCRIPTS if name.startswith(script)}
    return len(scripts) > 1 or bool(scripts & {"FULLWIDTH", "MATHEMATICAL"}) or all(m in _LOOK_ALIKE for m in word)
