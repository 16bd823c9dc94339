"""TCP ports of this host: a free one, and who listens on a busy one. Nothing here ends a process."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_llmbench.errors import PortInUse

if TYPE_CHECKING:
    import psutil

LOOPBACK = "127.0.0.1"
FOREIGN = "another user's process"
_CONNECT_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who listens on a port. `pid` is None where the system doesn't tell us, as for another user's process."""

    pid: int | None
    name: str

    def __str__(self) -> str:
        return self.name if self.pid is None else f"{self.name} (pid {self.pid})"


def is_loopback(url: str) -> bool:
    """Whether `url` leads to this machine itself."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def free_port(host: str = LOOPBACK) -> int:
    """A port that nobody listens on now. OSError where `host` isn't an address of this machine."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_owner(port: int) -> Listener | None:
    """Who listens on TCP `port`, on any address of this host; None where nobody does."""
    for pid, listening in _listeners():
        if listening == port and pid is not None:
            return Listener(pid=pid, name=_process_name(pid))
    return Listener(pid=None, name=FOREIGN) if _is_busy(port) else None


def check_port_free(port: int) -> None:
    """PortInUse, naming the process, where somebody listens on `port`."""
    owner = port_owner(port)
    if owner is None:
        return
    raise PortInUse(
        f"port {port} is in use by {owner}; stop that process yourself, or take bench_port out of the "
        "settings so that a free one is chosen"
    )


def listening_ports(pid: int) -> frozenset[int]:
    """TCP ports that process `pid` listens on; empty where it is gone or not ours to look at."""
    import psutil

    try:
        return frozenset(_ports(psutil.Process(pid)))
    except psutil.Error:
        return frozenset()


def _listeners() -> Iterator[tuple[int | None, int]]:
    """(pid, port) of what listens. macOS gives the whole table to root only, so there we ask our own processes."""
    import psutil

    try:
        table = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        yield from _listeners_by_process()
        return
    for connection in table:
        if connection.status == psutil.CONN_LISTEN and connection.laddr:
            yield connection.pid, connection.laddr.port


def _listeners_by_process() -> Iterator[tuple[int, int]]:
    import psutil

    for pid in psutil.pids():
        for port in listening_ports(pid):
            yield pid, port


def _ports(process: psutil.Process) -> Iterator[int]:
    import psutil

    for connection in process.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr:
            yield connection.laddr.port


def _process_name(pid: int) -> str:
    import psutil

    try:
        return psutil.Process(pid).name() or "a process"
    except psutil.Error:
        return "a process"


def _is_busy(port: int) -> bool:
    return any(_answers(host, port) for host in (LOOPBACK, "::1")) or not _can_bind(port)


def _answers(host: str, port: int) -> bool:
    with socket.socket(_family(host), socket.SOCK_STREAM) as client:
        client.settimeout(_CONNECT_TIMEOUT_S)
        try:
            return client.connect_ex((host, port)) == 0
        except OSError:
            return False


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections that linger in TIME_WAIT aren't listeners.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
        return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
