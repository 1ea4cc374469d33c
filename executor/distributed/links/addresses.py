"""The address at which other processes of a run reach this one.

On one machine nobody else can: it is the loopback. On several it is the one from which this machine
reaches the one that torchrun names, or where that is this machine itself by a name of the loopback,
another one.
"""

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from executor.distributed.meeting import SECRET, Board
from executor.distributed.world import World
from executor.errors import RunError, UsageError, one_line
from profiles import console

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # the address of an interface
_SILENT_S = 5.0  # too long without a word of one that lives
_PORT = 9  # nothing is sent there


def grouped(board: Board) -> str:
    """Let torch.distributed connect all processes, by the network on which they reach each other;
    this one's address there. RunError where that cannot be."""
    try:
        address = own_address(board.world, board.gather, os.environ)
        if interface := interface_of(address):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if board.world.rank == 0:
            console.note(reach(board.world, address, os.environ))
        dist.init_process_group(
            "gloo",
            store=board.store("gloo"),
            rank=board.world.rank,
            world_size=board.world.size,
            timeout=timedelta(seconds=board.limit_s),
        )
    except (RuntimeError, OSError, EOFError) as error:
        board.expect(range(board.world.size), _SILENT_S)
        raise RunError(f"the processes cannot connect: {one_line(error)}") from None
    return address


def own_address(
    world: World, gather: Callable[[str, str], Sequence[str]], environ: Mapping[str, str]
) -> str:
    """The address of this process, which all processes find together: `gather` a text of each."""
    if world.nodes == 1:
        return LOOPBACK
    mine = _towards(environ["MASTER_ADDR"])
    outside = [one for one in gather("address", mine) if not _loops(one)]
    return _towards(outside[0]) if outside and _loops(mine) else mine


def interface_of(address: str) -> str:
    """The network interface that has this address; "" where none is found."""
    for _, name in socket.if_nameindex():
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            wanted = struct.pack("256s", name.encode()[:15])
            if socket.inet_ntoa(fcntl.ioctl(asking, _SIOCGIFADDR, wanted)[20:24]) == address:
                return name
    return "lo" if _loops(address) else ""


def reach(world: World, address: str, environ: Mapping[str, str]) -> str:
    """Who may reach which port of a run, in one line."""
    gloo, port = environ.get("GLOO_SOCKET_IFNAME", "every interface"), environ.get("MASTER_PORT")
    if world.nodes == 1:
        in_store, member = "put nothing there that counts", "this user alone, until the run begins"
        near = "whoever is on this machine"
    else:
        near = "whoever reaches it"
        if environ.get(SECRET):
            in_store, member = "put nothing there that counts", f"who has the run's {SECRET}"
        else:
            in_store = f"take part, unless all machines set the same {SECRET}"
            member = "who has read the store"
    return (
        f"ports: torchrun's store, {port} on every address (whoever reaches it can end a start, "
        f"and {in_store}); messages, on {address} ({member}); gloo, on {gloo} ({near})"
    )


def _towards(host: str) -> str:
    """The address of this machine on the way to another one; UsageError where there is no way."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((host, _PORT))
            return str(way.getsockname()[0])
    except OSError as error:
        raise UsageError(f"{host}, which leads this run, cannot be reached: {error}") from None


def _loops(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
