"""torchrun on several nodes that are all this machine: an agent for each."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

IN_TURN = Path(__file__).with_name("in_turn.py")


class Ended(NamedTuple):
    """An agent that has ended: its exit code, those of its commands, and what they have written."""

    code: int
    codes: list[int]
    output: str


def on_nodes(
    folder: Path, commands: Sequence[Sequence[object]], nodes: int, processes: int
) -> list[Ended]:
    """Executor commands, in turn, in so many processes of each node; an answer for each node."""
    lines = [json.dumps([str(part) for part in command]) for command in commands]
    agents = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for node in range(nodes):
        call = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes)]
        call += ["--node-rank", str(node), "--nproc-per-node", str(processes)]
        call += ["--master-addr", "127.0.0.1", "--master-port", str(port), str(IN_TURN), *lines]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        alone = os.environ | {"OMP_NUM_THREADS": "1"}
        agents.append(subprocess.Popen(call, cwd=folder, env=alone, **pipes))
    return [_ended(agent) for agent in agents]


def _ended(agent: "subprocess.Popen[str]") -> Ended:
    output, _ = agent.communicate(timeout=120)
    codes = next((line for line in output.splitlines() if line.startswith("[")), "[]")
    return Ended(agent.returncode, json.loads(codes), output)
