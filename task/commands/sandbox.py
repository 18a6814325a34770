"""Ask the sandbox launcher what this machine offers, and let it try its escape list."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

from task.commands.checks import Check

LAUNCHER = (sys.executable, "-m", "mcp_servers.sandbox")
PROBE_SECONDS = 30.0
MEND = (
    "Install bubblewrap, or use a kernel with Landlock (Linux 5.13 or newer). `dial-agent doctor --sandbox` tells more."
)


def self_test(as_json: bool) -> int:
    """Print the verdict of every attack; 0 when nothing got out, else 1."""
    options = ["--json"] if as_json else []
    done = subprocess.run([*LAUNCHER, "--self-test", *options], check=False)  # noqa: S603
    return 0 if done.returncode == 0 else 1


async def sandbox_check() -> Check:
    """The row of `doctor`: the tier, or why Python code and commands are not run here."""
    process = await asyncio.create_subprocess_exec(
        *LAUNCHER, "--probe", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, error = await asyncio.wait_for(process.communicate(), PROBE_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return Check("sandbox", "note", f"no answer within {PROBE_SECONDS:.0f} s", MEND)
    if process.returncode != 0:
        return Check("sandbox", "note", error.decode(errors="replace").strip(), MEND)
    return _row(json.loads(out))


def _row(tier: dict[str, object]) -> Check:
    match tier:
        case {"level": 0, "works": dict() as reasons}:
            told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            return Check("sandbox", "note", f"none works, so Python code is not run ({told})", MEND)
        case {"name": name, "mechanisms": list() as mechanisms}:
            return Check("sandbox", "ok", f"{name} ({', '.join(map(str, mechanisms))})")
        case _:
            return Check("sandbox", "bad", "the launcher's answer is not understood", "Install the product again.")
