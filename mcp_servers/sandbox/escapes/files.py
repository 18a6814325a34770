"""Attacks on files outside: read, write, replace, link, and change what belongs to a file."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress

from mcp_servers.sandbox.escapes.world import GOT_IT, World

RACE_ROUNDS = 1500


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


def write_to_file(world: World) -> str:
    """overwrite a file outside"""
    return _write(world.canary("write_to_file"))


def write_by_prepared_link(world: World) -> str:
    """overwrite a file through a link that lay in the folder"""
    return _write(f"{world.inside}/prepared_link/write_by_prepared_link")


def create_file(world: World) -> str:
    """make a file outside"""
    return _write(world.canary("create_file.new"))


def create_folder(world: World) -> str:
    """make a folder outside"""
    os.mkdir(world.canary("create_folder.new"))
    return ""


def create_fifo(world: World) -> str:
    """make a FIFO outside"""
    os.mkfifo(world.canary("create_fifo.new"))
    return ""


def create_link(world: World) -> str:
    """make a symbolic link outside"""
    os.symlink("/etc/passwd", world.canary("create_link.new"))
    return ""


def create_socket(world: World) -> str:
    """bind a Unix socket outside"""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(world.canary("create_socket.new"))
    return ""


def create_device(world: World) -> str:
    """make a device file for the disk"""
    os.mknod("disk", 0o60600, os.makedev(254, 0))
    return GOT_IT


def hard_link_out(world: World) -> str:
    """link a file of one's own to the outside"""
    open("own", "w").close()
    os.link("own", world.canary("hard_link_out.new"))
    return ""


def rename_out(world: World) -> str:
    """move a file to the outside"""
    open("moved", "w").close()
    os.rename("moved", world.canary("rename_out.new"))
    return ""


def rename_over(world: World) -> str:
    """replace a file outside"""
    open("replacement", "w").close()
    os.replace("replacement", world.canary("rename_over"))
    return ""


def rename_in(world: World) -> str:
    """move a file from outside into the folder"""
    os.rename(world.canary("rename_in"), "moved_in")
    return _text("moved_in")


def delete_file(world: World) -> str:
    """delete a file outside"""
    os.unlink(world.canary("delete_file"))
    return ""


def truncate_by_path(world: World) -> str:
    """empty a file without opening it"""
    os.truncate(world.canary("truncate_by_path"), 0)
    return ""


def change_mode(world: World) -> str:
    """chmod a file outside"""
    os.chmod(world.canary("change_mode"), 0o4777)  # noqa: S103
    return ""


def change_times(world: World) -> str:
    """set the times of a file outside"""
    os.utime(world.canary("change_times"), (1, 1))
    return ""


def change_attribute(world: World) -> str:
    """set an extended attribute of a file outside"""
    os.setxattr(world.canary("change_attribute"), "user.escape", b"1")
    return ""


def write_to_read_only(world: World) -> str:
    """overwrite a file of a read-only folder"""
    return _write(f"{world.read_only}/write_to_read_only")


def create_in_read_only(world: World) -> str:
    """make a file in a read-only folder"""
    return _write(f"{world.read_only}/create_in_read_only.new")


def change_mode_by_descriptor(world: World) -> str:
    """chmod a read-only file through an open descriptor"""
    with open(f"{world.read_only}/change_mode_by_descriptor") as file:
        os.fchmod(file.fileno(), 0o4777)
    return ""


def _text(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read(4000)


def _write(path: str) -> str:
    with open(path, "w") as file:
        file.write("escaped")
    return ""


ATTACKS = (
    read_by_path, read_by_parent, read_by_prepared_link, read_by_new_link, read_by_hard_link, read_by_root_of_proc,
    read_by_root_of_neighbour, read_by_inherited_descriptor, read_in_a_race, read_neighbours_file, read_shared_memory,
    read_password_hashes, list_folder, write_to_file, write_by_prepared_link, create_file, create_folder, create_fifo,
    create_link, create_socket, create_device, hard_link_out, rename_out, rename_over, rename_in, delete_file,
    truncate_by_path, change_mode, change_times, change_attribute, write_to_read_only, create_in_read_only,
    change_mode_by_descriptor,
)  # fmt: skip
