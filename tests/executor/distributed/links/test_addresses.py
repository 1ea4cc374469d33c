"""The addresses of processes on several machines, of which names may say too little."""

import threading
from collections.abc import Mapping

import pytest

pytest.importorskip("torch")

from torch.distributed import HashStore

from executor.distributed.links import addresses
from executor.distributed.links.addresses import LOOPBACK, interface_of, own_address
from executor.distributed.world import World
from executor.errors import UsageError


def found(ways: Mapping[int, Mapping[str, str]], master: str) -> dict[int, str]:
    """The address that each process finds; `ways`: its own ones towards each host."""
    store, answers = HashStore(), dict[int, str]()
    here = threading.local()

    def gather(key: str, mine: str) -> list[str]:
        store.set(f"{key} {here.rank}", mine)
        return [store.get(f"{key} {rank}").decode() for rank in ways]

    def find(rank: int) -> None:
        here.rank, here.ways = rank, ways[rank]
        answers[rank] = own_address(World(rank, len(ways), 2), gather, {"MASTER_ADDR": master})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(addresses, "_towards", lambda host: here.ways[host])
        threads = [threading.Thread(target=find, args=(rank,)) for rank in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return answers


def test_machines_have_the_address_towards_the_one_that_leads() -> None:
    assert found({0: {"a": "10.0.0.1"}, 1: {"a": "10.0.0.2"}}, "a") == {
        0: "10.0.0.1",
        1: "10.0.0.2",
    }


def test_a_name_of_the_loopback_is_not_told_to_others() -> None:
    """As /etc/hosts may have it of the machine itself."""
    ways = {0: {"a": "127.0.1.1", "10.0.0.2": "10.0.0.1"}, 1: {"a": "10.0.0.2"}}
    assert found(ways, "a") == {0: "10.0.0.1", 1: "10.0.0.2"}


def test_nodes_on_one_machine_stay_on_the_loopback() -> None:
    assert found({0: {"a": "127.0.0.1"}, 1: {"a": "127.0.0.1"}}, "a") == {0: LOOPBACK, 1: LOOPBACK}


def test_one_node_asks_nobody() -> None:
    assert own_address(World(1, 2), lambda key, text: [], {}) == LOOPBACK


def test_the_loopback_has_an_interface_and_a_host_that_is_nowhere_is_refused() -> None:
    assert interface_of(LOOPBACK) == "lo"
    assert addresses._towards("localhost") == LOOPBACK
    with pytest.raises(UsageError, match=r"nowhere[.]invalid, which leads this run"):
        addresses._towards("nowhere.invalid")
