"""Attacks on the network: a message to a listener outside by every kind of socket, and needless kinds of sockets."""

import ctypes
import socket
from contextlib import suppress

from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers
from tests.support.escapes.world import GOT_IT, World

FAST_OPEN = 0x20000000
HOST = "127.0.0.1"
VSOCK_HOST = 2
PATIENCE = 2.0


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("name_length", ctypes.c_uint32), ("vectors", ctypes.POINTER(_Vector)),
        ("vector_count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int), ("sent", ctypes.c_uint32),
    )  # fmt: skip


def tcp(world: World) -> str:
    """connect by TCP"""
    return _connect(socket.AF_INET, (HOST, world.tcp_port), b"tcp|")


def tcp_over_ipv6(world: World) -> str:
    """connect by TCP over IPv6"""
    return _connect(socket.AF_INET6, ("::1", world.tcp6_port), b"tcp_over_ipv6|")


def multipath_tcp(world: World) -> str:
    """connect by multipath TCP"""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as sender:
        sender.connect((HOST, world.tcp_port))
        sender.sendall(b"multipath_tcp|")
    return ""


def fast_open_sendto(world: World) -> str:
    """TCP Fast Open: data without connect, by sendto"""
    with socket.socket() as sender:
        sender.sendto(b"fast_open_sendto|", FAST_OPEN, (HOST, world.tcp_port))
    return ""


def fast_open_sendmsg(world: World) -> str:
    """TCP Fast Open by sendmsg"""
    with socket.socket() as sender:
        sender.sendmsg([b"fast_open_sendmsg|"], [], FAST_OPEN, (HOST, world.tcp_port))
    return ""


def fast_open_sendmmsg(world: World) -> str:
    """TCP Fast Open by sendmmsg"""
    with socket.socket() as sender:
        _send_many(sender, b"fast_open_sendmmsg|", _internet_address(world.tcp_port), FAST_OPEN)
    return ""


def udp(world: World) -> str:
    """send by UDP"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"udp|", (HOST, world.udp_port))
    return ""


def udp_sendmmsg(world: World) -> str:
    """send by UDP, many at once"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        _send_many(sender, b"udp_sendmmsg|", _internet_address(world.udp_port), 0)
    return ""


def unix_stream(world: World) -> str:
    """connect to a service's Unix socket"""
    return _connect(socket.AF_UNIX, world.stream_socket, b"unix_stream|")


def unix_abstract(world: World) -> str:
    """connect to an abstract Unix socket"""
    return _connect(socket.AF_UNIX, world.abstract_socket.replace("@", "\0"), b"unix_abstract|")


def unix_datagram(world: World) -> str:
    """send to a service's datagram socket"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"unix_datagram|", world.datagram_socket)
    return ""


def unix_raw(world: World) -> str:
    """send to a service's datagram socket from a socket of type RAW"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_RAW) as sender:
        sender.sendto(b"unix_raw|", world.datagram_socket)
    return ""


def unix_pair(world: World) -> str:
    """send to a service's datagram socket from one end of a socket pair"""
    sender, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.sendto(b"unix_pair|", world.datagram_socket)
    return ""


def unix_sequence(world: World) -> str:
    """connect to a service's Unix socket of ordered messages"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
        sender.connect(world.sequence_socket)
        sender.sendall(b"unix_sequence|")
    return ""


def unix_sendmsg(world: World) -> str:
    """send to a service's datagram socket by sendmsg"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendmsg([b"unix_sendmsg|"], [], 0, world.datagram_socket)
    return ""


def unix_descriptor(world: World) -> str:
    """hand a descriptor to a service"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, (0).to_bytes(4, "little"))]
        sender.sendmsg([b"unix_descriptor|"], rights, 0, world.datagram_socket)
    return ""


def tcp_over_mapped_address(world: World) -> str:
    """connect by TCP over IPv6 to an address of IPv4"""
    return _connect(socket.AF_INET6, (f"::ffff:{HOST}", world.tcp_port), b"tcp_over_mapped_address|")


def udp_over_mapped_address(world: World) -> str:
    """send by UDP over IPv6 to an address of IPv4"""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"udp_over_mapped_address|", (f"::ffff:{HOST}", world.udp_port))
    return ""


def tcp_without_waiting(world: World) -> str:
    """connect by TCP without waiting, and send when it is there"""
    with socket.socket() as sender:
        sender.setblocking(False)
        with suppress(BlockingIOError):
            sender.connect((HOST, world.tcp_port))
        sender.setblocking(True)
        sender.sendall(b"tcp_without_waiting|")
    return ""


def rare_sockets(world: World) -> str:
    """open a socket of any family that programs do not need"""
    for family in set(range(1, 46)) - {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            with suppress(OSError):
                return _open(family, kind, 0)
    return ""


def raw_ip(world: World) -> str:
    """open a raw IP socket"""
    return _open(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


def packets(world: World) -> str:
    """open a packet socket, which sees every frame"""
    return _open(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)


def virtual_machine_socket(world: World) -> str:
    """open a socket to the machine's host"""
    return _open(socket.AF_VSOCK, socket.SOCK_STREAM, 0)


def kernel_crypto_socket(world: World) -> str:
    """open a socket into the kernel's cryptography"""
    return _open(socket.AF_ALG, socket.SOCK_SEQPACKET, 0)


def bluetooth(world: World) -> str:
    """open a Bluetooth control socket"""
    return _open(31, socket.SOCK_RAW, 1)


def list_interfaces(world: World) -> str:
    """ask netlink for the machine's network interfaces"""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0):
        names = {name for _, name in socket.if_nameindex()}
    return GOT_IT if names - {"lo"} else ""


def _open(family: int, kind: int, protocol: int) -> str:
    socket.socket(family, kind, protocol).close()
    return GOT_IT


def _connect(family: int, address: object, message: bytes) -> str:
    with socket.socket(family) as sender:
        sender.settimeout(PATIENCE)
        sender.connect(address)  # pyright: ignore[reportArgumentType]
        sender.sendall(message)
    return ""


def _internet_address(port: int) -> bytes:
    return socket.AF_INET.to_bytes(2, "little") + port.to_bytes(2, "big") + socket.inet_aton(HOST) + bytes(8)


def _send_many(sender: socket.socket, text: bytes, address: bytes, flags: int) -> None:
    vector = _Vector(text, len(text))
    message = _Message(address, len(address), ctypes.pointer(vector), 1, None, 0, 0, 0)
    system_call(numbers(machine())["sendmmsg"], sender.fileno(), ctypes.byref(message), 1, flags)


ATTACKS = (
    tcp, tcp_over_ipv6, multipath_tcp, fast_open_sendto, fast_open_sendmsg, fast_open_sendmmsg, udp, udp_sendmmsg,
    tcp_over_mapped_address, udp_over_mapped_address, tcp_without_waiting, unix_stream, unix_abstract, unix_datagram,
    unix_raw, unix_pair, unix_sequence, unix_sendmsg, unix_descriptor, rare_sockets, raw_ip, packets,
    virtual_machine_socket, kernel_crypto_socket, bluetooth, list_interfaces,
)  # fmt: skip
