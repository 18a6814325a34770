"""Attacks that read files outside: by every kind of path, link and descriptor."""

import os
import subprocess
import threading
import time
from contextlib import suppress

from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers
from tests.support.escapes.world import GOT_IT, World

RACE_ROUNDS = 1500
IN_CREATE, HERE = 0x100, -100


def read_by_path(world: World) -> str:
    """read a file by its absolute path"""
    return _text(world.canary("read_by_path"))


def read_by_parent(world: World) -> str:
    """read a file through `..`"""
    return _text(os.path.relpath(world.canary("read_by_parent"), world.inside))


def read_by_prepared_link(world: World) -> str:
    """read through a symbolic link that lay in the folder"""
    return _text(f"{world.inside}/prepared_link/read_by_prepared_link")


def read_by_new_link(world: World) -> str:
    """read through a symbolic link of one's own"""
    os.symlink(world.canary("read_by_new_link"), "new_link")
    return _text("new_link")


def read_by_hard_link(world: World) -> str:
    """make a hard link to a file and read it"""
    os.link(world.canary("read_by_hard_link"), "hard_link")
    return _text("hard_link")


def read_by_root_of_proc(world: World) -> str:
    """read through /proc/self/root"""
    return _text(f"/proc/self/root{world.canary('read_by_root_of_proc')}")


def read_by_root_of_neighbour(world: World) -> str:
    """read through the root of a neighbour in /proc"""
    return _text(f"/proc/{world.neighbour_pid}/root{world.canary('read_by_root_of_neighbour')}")


def read_by_inherited_descriptor(world: World) -> str:
    """read through a folder that the parent had open"""
    for descriptor in range(3, 64):
        with suppress(OSError):
            name = os.path.basename(world.canary("read_by_inherited_descriptor"))
            file = os.open(name, os.O_RDONLY, dir_fd=descriptor)
            return os.read(file, 1000).decode()
    return ""


def read_in_a_race(world: World) -> str:
    """swap a file for a link while it is being opened"""
    open("raced", "w").close()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.symlink(world.canary("read_in_a_race"), "swap")
            os.replace("swap", "raced")
            open("swap", "w").close()
            os.replace("swap", "raced")

    thread = threading.Thread(target=swap)
    thread.start()
    said = ""
    for _ in range(RACE_ROUNDS):
        with suppress(OSError):
            said = said or _text("raced")
        time.sleep(0)  # lets the other thread swap
    stop.set()
    thread.join()
    return said


def read_neighbours_file(world: World) -> str:
    """read a file of a neighbour"""
    return _text(world.neighbour_file)


def read_shared_memory(world: World) -> str:
    """read a neighbour's file in /dev/shm"""
    return _text(world.shared_memory)


def read_password_hashes(world: World) -> str:
    """read /etc/shadow"""
    return GOT_IT if _text("/etc/shadow") else ""


def list_folder(world: World) -> str:
    """list a folder outside"""
    return GOT_IT if "list_folder" in os.listdir(world.outside) else ""


def read_by_parents_descriptor(world: World) -> str:
    """read through a descriptor of the parent folder"""
    parent = os.open("..", os.O_PATH)
    name = os.path.relpath(world.canary("read_by_parents_descriptor"), os.path.dirname(world.inside))
    return os.read(os.open(name, os.O_RDONLY, dir_fd=parent), 1000).decode()


def read_by_name_only_descriptor(world: World) -> str:
    """open a file without reading rights, and again through its own descriptor"""
    descriptor = os.open(world.canary("read_by_name_only_descriptor"), os.O_PATH)
    return _text(f"/proc/self/fd/{descriptor}")


def read_by_working_folder(world: World) -> str:
    """change to the folder outside, and read by a bare name"""
    os.chdir(world.outside)
    return _text("read_by_working_folder")


def read_by_another_program(world: World) -> str:
    """let another program read a file"""
    path = world.canary("read_by_another_program")
    return subprocess.run(["/bin/cat", path], capture_output=True, text=True, check=False).stdout


def run_file(world: World) -> str:
    """execute a file outside"""
    done = subprocess.run(["/bin/sh", "-c", world.canary("run_file")], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def watch_folder(world: World) -> str:
    """be notified of changes in a folder outside"""
    watcher = system_call(numbers(machine())["inotify_init1"], 0)
    system_call(numbers(machine())["inotify_add_watch"], watcher, world.outside.encode(), IN_CREATE)
    return GOT_IT


def watch_by_file_notices(world: World) -> str:
    """be notified of changes by the newer interface"""
    watcher = system_call(numbers(machine())["fanotify_init"], 0x200, os.O_RDONLY)
    system_call(numbers(machine())["fanotify_mark"], watcher, 1, IN_CREATE, HERE, world.outside.encode())
    return GOT_IT


def _text(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read(4000)


ATTACKS = (
    read_by_path, read_by_parent, read_by_prepared_link, read_by_new_link, read_by_hard_link, read_by_root_of_proc,
    read_by_root_of_neighbour, read_by_inherited_descriptor, read_by_parents_descriptor, read_by_name_only_descriptor,
    read_by_working_folder, read_by_another_program, run_file, read_in_a_race, read_neighbours_file,
    read_shared_memory, read_password_hashes, list_folder, watch_folder, watch_by_file_notices,
)  # fmt: skip
