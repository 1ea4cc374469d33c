"""torchrun on several nodes that are all this machine: an agent for each."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.forked import ended, started, torchrun

IN_TURN = Path(__file__).with_name("in_turn.py")


class Ended(NamedTuple):
    """An agent that has ended: its exit code, those of its commands, and what they have written."""

    code: int
    codes: list[int]
    output: str


def on_nodes(
    folder: Path,
    commands: Sequence[Sequence[object]],
    nodes: int,
    processes: int,
    **environment: str,
) -> list[Ended]:
    """Executor commands, in turn, in so many processes of each node; an answer for each node."""
    lines = [json.dumps([str(part) for part in command]) for command in commands]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = ["--nnodes", nodes, "--master-addr", "127.0.0.1", "--master-port", port]
    said = [folder / f"said.{node}" for node in range(nodes)]
    agents = [
        started(
            torchrun(processes, *shared, "--node-rank", node, IN_TURN, *lines),
            said[node],
            folder,
            **environment,
        )
        for node in range(nodes)
    ]
    codes = [ended(agent) for agent in agents]
    return [_ended(code, file.read_text()) for code, file in zip(codes, said, strict=True)]


def _ended(code: int, output: str) -> Ended:
    codes = next((line for line in output.splitlines() if line.startswith("[")), "[]")
    return Ended(code, json.loads(codes), output)
