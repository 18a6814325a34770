"""Attacks that run until they are ended: forks, floods, and processes that avoid being ended."""

import os
import signal
import sys
import time
from typing import NoReturn

from tests.support.escapes.world import World

MANY = 400
FAREWELL_SECONDS = 60


def fork_bomb(world: World) -> NoReturn:
    """start more processes than allowed"""
    started = 0
    while started < MANY:
        try:
            child = os.fork()
        except OSError:
            break
        if child == 0:
            _linger()
        started += 1
    _say(f"{started} processes")
    _linger()


def flood(world: World) -> NoReturn:
    """write without end"""
    _say("flood")
    while True:
        sys.stdout.write("x" * 65536)


def hidden_grandchild(world: World) -> NoReturn:
    """leave a process in a session of its own, deaf to signals, with another parent"""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.chdir("/")
            _say("hidden")
            _linger()
        os._exit(0)
    _linger()


def hopping_process(world: World) -> NoReturn:
    """fork and exit repeatedly, so that no process lives long enough to be found"""
    if os.fork() == 0:
        os.setsid()
        _say("hopping")
        while True:
            if os.fork() != 0:
                os._exit(0)
            os.setsid()
    _linger()


def _say(text: str) -> None:
    print(text, flush=True)


def _linger() -> NoReturn:
    time.sleep(FAREWELL_SECONDS)
    os._exit(0)


ATTACKS = (flood, hidden_grandchild, hopping_process, fork_bomb)
