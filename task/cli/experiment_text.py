"""The variants of experiments as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from task.cli.trace_text import columns
from task.store.experiments import Variant
from task.store.intervals import Difference

HEADINGS = ("VARIANT", "MODEL", "RUNS", "FAILED", "TOKENS", "COST", "P50", "P95", "UP", "DOWN")
NOTE = (
    "Tokens and cost are means of a run; costs only of runs whose cost is known. In brackets: the 95 % confidence\n"
    "interval (shares: Newcombe; means: Welch; percentiles: bootstrap), from five values of each variant on."
)
FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "failures": ("failed", lambda value: f"{value:+.1%}"),
    "mean_tokens": ("tokens", lambda value: f"{value:+,.0f}"),
    "mean_cost": ("cost", lambda value: f"{value:+.6f}"),
    "p50_ms": ("p50", lambda value: f"{value / 1000:+.2f} s"),
    "p95_ms": ("p95", lambda value: f"{value / 1000:+.2f} s"),
    "up": ("rated up", lambda value: f"{value:+.1%}"),
}


def comparison(variants: Sequence[Variant]) -> str:
    """A line for each variant, and for each but the first how it differs from that one."""
    lines = [columns(HEADINGS, [_row(variant) for variant in variants])]
    if not variants:
        return "All runs of this experiment are still in progress."
    first = variants[0]
    for variant in variants[1:]:
        lines += ["", f"{_name(variant)} compared with {_name(first)}:"]
        lines += [f"  {line}" for line in _differences(variant)]
    return "\n".join([*lines, *(["", NOTE] if len(variants) > 1 else [])])


def _name(variant: Variant) -> str:
    return f"{variant.label} ({variant.model})"


def _row(variant: Variant) -> tuple[str, ...]:
    return (
        variant.label, variant.model, str(variant.count), str(variant.failures), f"{variant.mean_tokens:,.0f}",
        _cost(variant), _seconds(variant.p50_ms), _seconds(variant.p95_ms), str(variant.up), str(variant.down),
    )  # fmt: skip


def _cost(variant: Variant) -> str:
    if variant.mean_cost is None:
        return "unknown"
    known = "" if variant.priced == variant.count else f" (of {variant.priced})"
    return f"{variant.mean_cost:.6f}{known}"


def _seconds(milliseconds: float | None) -> str:
    return f"{milliseconds / 1000:.2f} s" if milliseconds is not None else ""


def _differences(variant: Variant) -> list[str]:
    found = ((name, render, variant.differences.get(key)) for key, (name, render) in FIGURES.items())
    return [f"{name}: {_with_interval(item, render)}" for name, render, item in found if item is not None]


def _with_interval(item: Difference, render: Callable[[float], str]) -> str:
    if item.low is None or item.high is None:
        return render(item.value)
    return f"{render(item.value)} [{render(item.low)}, {render(item.high)}]"
