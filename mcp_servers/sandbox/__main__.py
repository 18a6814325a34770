"""`python -m mcp_servers.sandbox`: read the command line, then become the program or say what was asked."""

import os
import sys
from collections.abc import Callable

if __name__ == "__main__" and not __package__:
    # Started by its path, without site packages: half the time of `-m`.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from mcp_servers.sandbox import process
from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.launch import NOT_EXECUTABLE_EXIT, NOT_FOUND_EXIT, REFUSED_EXIT, launch
from mcp_servers.sandbox.policy import Policy, parse

USAGE = """usage: python -m mcp_servers.sandbox --policy FILE|JSON -- PROGRAM [ARGUMENT …]
       python -m mcp_servers.sandbox --serve
       python -m mcp_servers.sandbox --probe
       python -m mcp_servers.sandbox --self-test [--tier TIER] [--json]
       python -m mcp_servers.sandbox --kill MARK | --kill-uid UID | --clear-uid UID [FOLDER …]"""
USAGE_EXIT = 2


def main(arguments: list[str]) -> int:
    """Do what the command line asks; a run returns only where the launcher stays beside it."""
    return _reported(lambda: _done(arguments))


def _reported(act: Callable[[], int]) -> int:
    try:
        return act()
    except SandboxError as error:
        return _refused(str(error), REFUSED_EXIT)
    except FileNotFoundError as error:
        return _refused(str(error), NOT_FOUND_EXIT)
    except OSError as error:
        return _refused(str(error), NOT_EXECUTABLE_EXIT)


def _done(arguments: list[str]) -> int:
    if sys.platform != "linux":
        raise SandboxError("the sandbox needs Linux")
    match arguments:
        case ["--policy", text, "--", *argv] if argv:
            process.close_descriptors()
            return launch(_policy(text), argv, os.getppid())
        case ["--serve"]:
            from mcp_servers.sandbox.server import serve

            return serve(lambda text, argv, _: _reported(lambda: launch(_policy(text), argv, os.getppid())))
        case ["--probe"]:
            return _probe()
        case ["--kill", mark] if mark.isdigit():
            return _kill(int(mark))
        case ["--kill-uid", uid] if uid.isdigit():
            _end_uid(int(uid))
            return 0
        case ["--clear-uid", uid, *folders] if uid.isdigit():
            return _clear_uid(int(uid), folders)
        case ["--self-test", *options]:
            from mcp_servers.sandbox.self_test import main as self_test

            return self_test(options)
        case _:
            print(USAGE, file=sys.stderr)
            return USAGE_EXIT


def _refused(reason: str, code: int) -> int:
    print(f"sandbox: {reason}", file=sys.stderr)
    return code


def _policy(text: str) -> Policy:
    if text.lstrip().startswith("{"):
        return parse(text)
    try:
        with open(text, encoding="utf-8") as file:
            return parse(file.read())
    except (OSError, UnicodeDecodeError) as error:
        raise SandboxError(f"the policy cannot be read: {error}") from None


def _probe() -> int:
    import json
    from dataclasses import asdict

    from mcp_servers.sandbox.tiers import find_tier

    print(json.dumps(asdict(find_tier())))
    return 0


def _kill(mark: int) -> int:
    from mcp_servers.sandbox.marks import kill_marked

    print(kill_marked(mark))
    return 0


def _end_uid(uid: int) -> None:
    from mcp_servers.sandbox.marks import end_all_of
    from mcp_servers.sandbox.policy import LOWEST_UID

    if uid < LOWEST_UID:
        raise SandboxError(f"uid {uid} is not one that runs have; they start at {LOWEST_UID}")
    end_all_of(uid)


def _clear_uid(uid: int, folders: list[str]) -> int:
    from mcp_servers.sandbox.leftovers import delete

    _end_uid(uid)
    try:
        delete(folders)
    except OSError as error:
        raise SandboxError(f"not everything of uid {uid} could be deleted: {error}") from None
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
