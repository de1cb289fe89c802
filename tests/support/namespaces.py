"""Machines on one network, each a network namespace: their lines can be moved to another switch, and cut.

Everything lives in a network namespace of this process, and is gone when it ends. It takes the rights of root.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
SWITCHES = ("sw1", "sw2")
DRIVER = "10.77.0.254"
"""Where this process is, on the first switch."""

_libc = ctypes.CDLL(None, use_errno=True)


class NoNamespaces(Exception):
    """This machine, or this user, has no network namespaces."""


class Network:
    """So many machines, numbered from 1, all on the first switch."""

    def __init__(self, machines: int) -> None:
        self.machines = range(1, machines + 1)

    def address(self, machine: int) -> str:
        return f"10.77.0.{machine}"

    def command(self, machine: int, words: Collection[str]) -> list[str]:
        """What runs a command on a machine; the process id is that of the command."""
        return ["ip", "netns", "exec", self._name(machine), *words]

    def on(self, machine: int, call: Callable[[], T]) -> T:
        """What a call returns that is made on a machine; only its connections are there."""
        found: list[T] = []
        raised: list[BaseException] = []

        def run() -> None:
            try:
                _enter(f"/run/netns/{self._name(machine)}")
                found.append(call())
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]
        return found[0]

    def cut(self, *machines: int) -> None:
        """Nothing goes to and from these machines any more."""
        for machine in machines:
            _ip("link", "set", self._line(machine), "nomaster")

    def split(self, others: Collection[int]) -> None:
        """These machines are on the second switch, which no line leads to from the first."""
        for machine in others:
            _ip("link", "set", self._line(machine), "master", SWITCHES[1])

    def heal(self) -> None:
        for machine in self.machines:
            _ip("link", "set", self._line(machine), "master", SWITCHES[0])

    def _name(self, machine: int) -> str:
        return f"epochlake-{os.getpid()}-{machine}"

    def _line(self, machine: int) -> str:
        return f"line{machine}"

    def lay(self) -> None:
        for switch in SWITCHES:
            _ip("link", "add", switch, "type", "bridge")
            _ip("link", "set", switch, "up")
        _ip("link", "set", "lo", "up")
        _ip("address", "add", f"{DRIVER}/24", "dev", SWITCHES[0])
        for machine in self.machines:
            name, line = self._name(machine), self._line(machine)
            _ip("netns", "add", name)
            _ip("link", "add", line, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", name, "address", "add", f"{self.address(machine)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")
            _ip("link", "set", line, "up", "master", SWITCHES[0])

    def remove(self) -> None:
        for machine in self.machines:
            subprocess.run(["ip", "netns", "delete", self._name(machine)], check=False, stderr=subprocess.DEVNULL)


@contextmanager
def network(machines: int) -> Iterator[Network]:
    """A network, with this process on it. Raises NoNamespaces; then nothing has changed."""
    if os.geteuid() != 0:
        raise NoNamespaces("network namespaces take the rights of root")
    if _libc.unshare(CLONE_NEWNET):
        raise NoNamespaces(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    made = Network(machines)
    try:
        try:
            made.lay()
        except (OSError, subprocess.CalledProcessError) as error:
            raise NoNamespaces(f"no network of namespaces: {error}") from error
        yield made
    finally:
        made.remove()


def _enter(namespace: str) -> None:
    """Let this thread be in another network namespace from now on."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
