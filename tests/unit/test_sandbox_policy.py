"""What a policy may say, and how it is refused."""

import json
from pathlib import Path

import pytest

from mcp_servers.sandbox import Limits, Policy, SandboxError
from mcp_servers.sandbox.policy import parse


def test_a_policy_survives_its_own_text(tmp_path: Path) -> None:
    policy = Policy(
        workdir=str(tmp_path),
        read_write=(str(tmp_path),),
        read_only=("/usr/share",),
        environment={"A": "ü"},
        uid=70_001,
        limits=Limits(memory=1 << 30, cpu_seconds=5),
        tier="landlock",
        mark=2**61,
        umask="022",
        protected=(f"{tmp_path}/kept",),
        objects=(f"{tmp_path}/.git/objects",),
        kept="/nowhere",
        network=("pypi.org", "127.0.0.1:8080", "*"),
    )
    assert parse(policy.to_json()) == policy


def test_what_is_left_out_is_the_strict_default() -> None:
    policy = parse('{"workdir": "/"}')
    assert (policy.read_write, policy.uid, policy.tier, policy.allow_unsafe) == ((), None, "auto", False)
    assert policy.limits == Limits()
    assert policy.die_with_parent


def test_only_paths_that_exist_are_mounted_by_default_and_etc_is_not_among_them() -> None:
    readable = Policy("/").readable()
    assert "/usr" in readable
    assert all(Path(path).exists() for path in readable)
    assert "/etc" not in readable


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "workdir: expected an absolute path"),
        ({"workdir": "relative"}, "workdir: expected an absolute path"),
        ({"workdir": "/", "read_wirte": []}, "unknown name 'read_wirte'"),
        ({"workdir": "/", "network": "host"}, "network: expected 'none' or a list"),
        ({"workdir": "/", "network": ["http://a"]}, "network: expected 'none' or a list"),
        ({"workdir": "/", "umask": 22}, "umask: expected octal digits"),
        ({"workdir": "/", "umask": "999"}, "umask: expected octal digits"),
        ({"workdir": "/", "protected": ["/etc/passwd"]}, "protected: '/etc/passwd' is not in a read_write folder"),
        ({"workdir": "/", "read_write": ["/var"], "objects": ["/var/a"]}, "objects: `kept` must name a folder"),
        (
            {"workdir": "/", "read_write": ["/var"], "objects": ["/var/a"], "kept": "/var/b"},
            "objects: `kept` must name",
        ),
        ({"workdir": "/", "objects": ["/var/a"], "kept": "/b"}, "protected: '/var/a' is not in a read_write folder"),
        ({"workdir": "/", "tier": "docker"}, "tier: expected one of"),
        ({"workdir": "/", "uid": 0}, "uid: expected a whole number from 1000"),
        ({"workdir": "/", "uid": True}, "uid: expected a whole number"),
        ({"workdir": "/", "allow_unsafe": "yes"}, "allow_unsafe: expected true or false"),
        ({"workdir": "/", "limits": {"memory": -1}}, "limits.memory: expected a whole number"),
        ({"workdir": "/", "limits": {"cpus": 1}}, "limits: unknown name 'cpus'"),
        ({"workdir": "/", "limits": []}, "limits: expected a JSON object"),
        ({"workdir": "/", "read_only": "/usr"}, "read_only: expected a list"),
        ({"workdir": "/", "read_only": ["/a\0b"]}, "read_only: expected an absolute path"),
        ({"workdir": "/", "read_write": ["/nowhere"]}, "read_write: '/nowhere' is not a folder"),
        ({"workdir": "/", "read_write": ["/"]}, "the whole file system"),
        ({"workdir": "/", "environment": {"A": 1}}, "environment: expected an object of strings"),
    ],
)
def test_a_wrong_policy_is_refused_by_name(values: dict[str, object], said: str) -> None:
    with pytest.raises(SandboxError, match=said.replace("(", "\\(")):
        parse(json.dumps(values))


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(SandboxError, match="not JSON"):
        parse("{workdir: /}")


def test_a_read_only_folder_inside_a_writable_one_is_refused_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "writable" / "kept").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "writable")
    for path in (tmp_path / "writable" / "kept", tmp_path / "link" / "kept"):
        values = {"workdir": "/", "read_write": [str(tmp_path / "writable")], "read_only": [str(path)]}
        with pytest.raises(SandboxError, match="cannot be enforced"):
            parse(json.dumps(values))
