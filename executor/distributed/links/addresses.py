"""The address at which other processes of a run reach this one.

On one machine nobody else can: it is the loopback. On several it is the one from which this machine
reaches the one that torchrun names, or where that is this machine itself by a name of the loopback,
another one.
"""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress

from torch.distributed import Store  # type: ignore[attr-defined]

from executor.distributed.world import World
from executor.errors import UsageError

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # the address of an interface
_PORT = 9  # nothing is sent there


def own_address(world: World, store: Store, environ: Mapping[str, str]) -> str:
    """The address of this process, which all processes find together."""
    if world.nodes == 1:
        return LOOPBACK
    mine = _towards(environ["MASTER_ADDR"])
    store.set(f"gantry/address/{world.rank}", mine)
    every = [store.get(f"gantry/address/{rank}").decode() for rank in range(world.size)]
    outside = [one for one in every if not _loops(one)]
    return _towards(outside[0]) if outside and _loops(mine) else mine


def interface_of(address: str) -> str:
    """The network interface that has this address; "" where none is found."""
    for _, name in socket.if_nameindex():
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            wanted = struct.pack("256s", name.encode()[:15])
            if socket.inet_ntoa(fcntl.ioctl(asking, _SIOCGIFADDR, wanted)[20:24]) == address:
                return name
    return "lo" if _loops(address) else ""


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
