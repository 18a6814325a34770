"""Coding runs as text for people, and as JSON data."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from task.cli.traces import columns
from task.coding.diffs import FileDiff
from task.coding.journal import RunRecord
from task.coding.undo import Undoing
from task.permissions.icerc import plain
from task.store.coding import CodingRun
from task.store.records import iso

HEADINGS = ("RUN", "STARTED", "RESULT", "TASK")
DAY = 86_400.0
LEAST = 12  # characters of a task
NOT_KEPT = {"too large": "too large to be kept", "ignored": "not kept", "special": "neither file, folder nor link"}


def listing(runs: Sequence[CodingRun], now: float, width: int | None) -> str:
    """One line for each run, none wider than `width`."""
    if not runs:
        return "There are no coding runs."
    rows = [(run.run_id, _when(run.started_at, now), result_of(run), plain(run.task)) for run in runs]
    if width is not None:
        taken = sum(max(len(line[place]) for line in (HEADINGS, *rows)) + 2 for place in range(3))
        rows = [(*row[:3], _cut(row[3], max(width - taken, LEAST))) for row in rows]
    return columns(HEADINGS, rows)


def details(run: CodingRun, diffs: Sequence[FileDiff], width: int | None) -> str:
    """The run as a person reads it, with no line wider than `width`; its changes are counted."""
    record = RunRecord.from_dict(run.data)
    took = "" if run.ended_at is None else f", {run.ended_at - run.started_at:.0f} s"
    facts = {
        "Task": plain(run.task), "Workspace": plain(run.workspace), "Started": iso(run.started_at)[:19] + took,
        "Planner": record.planner, "Executor": record.coder, "Verify": record.verify or "",
        "Reason": record.reason, "Trace": run.trace_id or "",
    }  # fmt: skip
    if record.progress is not None:
        spent = record.progress.spent
        facts["Used"] = f"{spent.steps} steps, {spent.tokens:,} tokens"
    lines = [f"{run.run_id}  {result_of(run)}"]
    lines += [_wrapped(f"{name:<10} ", plain(text), width) for name, text in facts.items() if text]
    if record.plan is not None:
        steps = enumerate(record.plan.plan, 1)
        lines += ["", "Plan", *(_wrapped(f"  {number}. ", plain(step), width) for number, step in steps)]
    if diffs:
        lines += ["", "Changes", *(f"  {_counts(item):>11}  {plain(item.path)}" for item in diffs)]
        lines += ["", f"The diff: dial-agent runs show {run.run_id} --diff"]
        if run.undone_at is None:
            lines.append(f"Take it back: dial-agent runs undo {run.run_id}")
    return "\n".join(lines)


def undone(run: CodingRun, plan: Undoing, stay: Sequence[str]) -> str:
    """What was restored, and what was not."""
    lines = [f"  {'removed ' if before is None else 'restored'}  {plain(path)}" for path, (_, before) in _shown(plan)]
    count = len(lines)
    lines.append(f"{run.run_id} is undone: {count} {'path' if count == 1 else 'paths'} in {plain(run.workspace)}.")
    lines += [f"! {plain(path)} stays: there is something of somebody else in it." for path in stay]
    lines += [f"! {plain(path)} is not restored: {NOT_KEPT.get(why, why)}." for path, why in plan.lost.items()]
    return "\n".join(lines)


def run_data(run: CodingRun) -> dict[str, Any]:
    """The run as JSON data, without its conversation."""
    record = RunRecord.from_dict(run.data)
    spent = record.progress.spent if record.progress is not None else None
    return {
        "run_id": run.run_id, "task": run.task, "workspace": run.workspace, "result": result_of(run),
        "reason": record.reason, "planner": record.planner, "coder": record.coder,
        "plan": record.plan.plan if record.plan is not None else None,
        "tests": record.plan.tests if record.plan is not None else None,
        "steps": spent.steps if spent is not None else 0, "tokens": spent.tokens if spent is not None else 0,
        "started_at": iso(run.started_at), "ended_at": _iso(run.ended_at), "undone_at": _iso(run.undone_at),
        "trace_id": run.trace_id,
    }  # fmt: skip


def result_of(run: CodingRun) -> str:
    """How the run ended, in a word or two."""
    if run.undone_at is not None:
        return "undone"
    result = None if run.status == "running" else run.data["result"]
    return str(result or run.status).replace("_", " ")


def _shown(plan: Undoing) -> list[tuple[str, Any]]:
    # Git's own files would only hide the rest.
    return [(path, pair) for path, pair in sorted(plan.steps.items()) if ".git" not in path.split("/")]


def _when(seconds: float, now: float) -> str:
    started = datetime.fromtimestamp(seconds).astimezone()
    return started.strftime("%H:%M:%S" if now - seconds < DAY else "%Y-%m-%d")


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else iso(seconds)


def _counts(item: FileDiff) -> str:
    return f"+{item.added} -{item.removed}"


def _wrapped(label: str, text: str, width: int | None) -> str:
    if width is None:
        return label + text
    indent = " " * len(label)
    return textwrap.fill(
        text, max(width, len(label) + LEAST), initial_indent=label, subsequent_indent=indent, break_on_hyphens=False
    )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
