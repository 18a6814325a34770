"""Attacks that change files outside: write, replace, link, and change what belongs to a file."""

import fcntl
import os
import socket

from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers
from tests.support.escapes.world import GOT_IT, World

HERE, EXCHANGE = -100, 2


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
    with open("moved_in") as file:
        return file.read()


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
    os.chmod(world.canary("change_mode"), 0o4777)
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


def append_to_file(world: World) -> str:
    """append to a file outside"""
    with open(world.canary("append_to_file"), "a") as file:
        file.write("escaped")
    return ""


def truncate_by_opening(world: World) -> str:
    """empty a file by opening it"""
    os.close(os.open(world.canary("truncate_by_opening"), os.O_RDONLY | os.O_TRUNC))
    return ""


def write_by_working_folder(world: World) -> str:
    """change to the folder outside, and write to a bare name"""
    os.chdir(world.outside)
    return _write("write_by_working_folder")


def create_without_a_name(world: World) -> str:
    """make a file without a name outside, then give it one"""
    descriptor = os.open(world.outside, os.O_TMPFILE | os.O_WRONLY)
    os.link(f"/proc/self/fd/{descriptor}", world.canary("create_without_a_name.new"), src_dir_fd=descriptor)
    return ""


def create_by_prepared_link(world: World) -> str:
    """make a file through a link that lay in the folder"""
    return _write(f"{world.inside}/prepared_link/create_by_prepared_link.new")


def exchange_files(world: World) -> str:
    """exchange a file of one's own with one outside"""
    open("exchanged", "w").close()
    there = world.canary("exchange_files").encode()
    system_call(numbers(machine())["renameat2"], HERE, b"exchanged", HERE, there, EXCHANGE)
    return ""


def lock_file(world: World) -> str:
    """lock a file outside, which its users wait for"""
    with open(world.canary("lock_file")) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return GOT_IT


def leave_file(world: World) -> str:
    """leave a file in the folder for everyone's temporary files"""
    return _write(world.leftovers["leave_file"])


def leave_lasting_file(world: World) -> str:
    """leave a file in the folder for temporary files that outlive a restart"""
    return _write(world.leftovers["leave_lasting_file"])


def _write(path: str) -> str:
    with open(path, "w") as file:
        file.write("escaped")
    return ""


ATTACKS = (
    write_to_file, append_to_file, write_by_prepared_link, write_by_working_folder, create_file, create_folder,
    create_fifo, create_link, create_socket, create_device, create_without_a_name, create_by_prepared_link,
    hard_link_out, rename_out, rename_over, rename_in, exchange_files, delete_file, truncate_by_path,
    truncate_by_opening, change_mode, change_times, change_attribute, lock_file, write_to_read_only,
    create_in_read_only, change_mode_by_descriptor, leave_file, leave_lasting_file,
)  # fmt: skip
