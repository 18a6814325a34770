"""Run attacks inside a sandbox: `inside.py WORLD [NAME]`, every quick one, or the named one until it is ended."""

import json
import os
import signal
import sys

# Only this folder's copy is readable inside, and Python was started without any path.
sys.path.insert(0, os.path.abspath(__file__).rsplit("/", 4)[0])

from tests.support.escapes.catalogue import ENDLESS, QUICK, Attack
from tests.support.escapes.world import World

ATTACK_SECONDS = 8


def main(arguments: list[str]) -> None:
    """Print one JSON line per attack: its output, or the error that stopped it."""
    world = World.parse(arguments[0])
    if len(arguments) > 1:
        ENDLESS[arguments[1]](world)
        return
    for name, attack in QUICK.items():
        said, error = _tried(attack, world)
        print(json.dumps({"name": name, "said": said, "error": error}), flush=True)


def _tried(attack: Attack, world: World) -> tuple[str, str]:
    """The attack runs in a child: it may end, mask or confuse its own process only."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _try(attack, world, writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        report = pipe.read()
    os.waitpid(child, 0)
    said, error = json.loads(report) if report else ("", "ended without a word")
    return said, error


def _try(attack: Attack, world: World, writer: int) -> None:
    signal.alarm(ATTACK_SECONDS)
    try:
        report = (attack(world), "")
    except OSError as error:
        report = ("", error.strerror or str(error))
    except BaseException as error:
        report = ("", f"BROKEN {type(error).__name__}: {error}")
    os.write(writer, json.dumps(report).encode())
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
