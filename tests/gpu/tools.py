"""The project's commands as the suite calls them, each in a process of its own, and their files.

What a command made lies in the suite's folder under a fixed name, so that no case makes it twice.
"""

import importlib.util
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SMALLEST = re.compile(r"smallest --device-memory that would do: (\d+)")
BUILD_SECONDS = 30  # for a plan
FOLDERS = ("profiles", "plans", "runs", "logs")
HOST_SHARE = 0.92  # of its memory, for the host store


class Trouble(Exception):
    """A case failed; the message says why in one line."""


class Skip(Exception):
    """A case cannot be run here; the message says why in one line."""


@dataclass(frozen=True)
class Bench:
    """Where and how the suite runs. until: a time.monotonic() value at which commands are ended.

    device_bytes and host_bytes: all the memory of the device and of the host. plans: a folder
    with plans of an earlier run, for a machine without a solver.
    """

    out: Path
    device: str
    tiny: bool
    device_bytes: int
    host_bytes: int
    precision: str
    plans: Path | None = None
    until: float = float("inf")

    def to_json(self) -> dict[str, Any]:
        """For another process, where `until` is in seconds from now."""
        paths = {"out": str(self.out), "plans": str(self.plans) if self.plans else None}
        return asdict(self) | paths | {"until": self.left}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Bench":
        plans = Path(values["plans"]) if values["plans"] else None
        until = time.monotonic() + values["until"]
        return Bench(**{**values, "out": Path(values["out"]), "plans": plans, "until": until})

    @property
    def left(self) -> float:
        """Seconds until `until`, a day at most."""
        return min(self.until - time.monotonic(), 86_400.0)

    def file(self, folder: str, name: str) -> Path:
        """A file of the suite's folder."""
        return self.out / folder / name


@dataclass(frozen=True)
class Workload:
    """A function of `models` with its settings, as environment variables; `name` names files."""

    name: str
    function: str
    settings: Mapping[str, str]

    @property
    def ref(self) -> str:
        return f"tests.gpu.models:{self.function}"

    def number(self, setting: str) -> int:
        """A setting that is a number."""
        return int(self.settings[f"GANTRY_SUITE_{setting.upper()}"])


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Its last line on stderr, where errors are."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error:")]
        return (errors or lines or ["it said nothing"])[-1][:400]


def python(
    bench: Bench, arguments: Sequence[object], settings: Mapping[str, str], log: str
) -> Done:
    """Run `python ARGUMENTS` at the root of the project; Trouble when time is up.

    The process group is ended with it, and both outputs are kept in logs/.
    """
    command = [sys.executable, *map(str, arguments)]
    if bench.left <= 0:
        raise Trouble(f"no time left for {log}")
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    first_to_go(child.pid)
    try:
        out, err = child.communicate(timeout=bench.left)
        late = False
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        late = True
    text = f"$ {' '.join(command)}\n{out}\n{err}\nexit {child.returncode}\n"
    bench.file("logs", f"{log}.txt").write_text(text)
    if late:
        raise Trouble(f"{log}: out of time; it had said: {Done(1, out, err).said}")
    return Done(child.returncode, out, err)


def first_to_go(pid: int) -> None:
    """Where the host has no memory left, let the kernel end this process and not the suite."""
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def succeeded(done: Done, what: str) -> Done:
    """The command, or Trouble with what it said."""
    if done.code:
        died = f"signal {-done.code}" if done.code < 0 else f"exit {done.code}"
        raise Trouble(f"{what}: {died}: {done.said}")
    return done


def last_json(done: Done, what: str) -> dict[str, Any]:
    """The JSON object at the end of what the command printed; progress may stand before it."""
    lines = done.out.strip().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("{")]
    for start in reversed(starts):
        try:
            found: dict[str, Any] = json.loads("\n".join(lines[start:]))
        except json.JSONDecodeError:
            continue
        return found
    raise Trouble(f"{what}: printed no JSON: {done.said}")


def has_planner() -> bool:
    """Whether plans can be built here."""
    return all(importlib.util.find_spec(name) for name in ("pulp", "highspy"))


def profile_options(bench: Bench, *, deterministic: bool = False) -> list[object]:
    """How a workload is profiled on the suite's device."""
    options: list[object] = ["--device", bench.device, "--devices", 1]
    options += ["--device-memory", bench.device_bytes, "--samples", 1 if bench.tiny else 3]
    if bench.device == "cpu":
        return [*options, "--h2d", "1GB/s", "--d2h", "1GB/s"]
    return [*options, *(["--deterministic"] if deterministic else [])]


def profile(bench: Bench, work: Workload) -> Path:
    """The workload's profile, measured at the first call."""
    path = bench.file("profiles", f"{work.name}.json")
    if not path.exists():
        command = ["-m", "executor", "profile", work.ref, *profile_options(bench), "-o", path]
        name = f"profile-{work.name}"
        succeeded(python(bench, command, work.settings, name), name)
    return path


def in_memory_bytes(path: Path) -> int:
    """About what the profile's tasks need to train without moving anything, whole batches."""
    total = 0
    for task in json.loads(path.read_text())["tasks"]:
        layers = task["layers"]
        total += sum(x["param_bytes"] + x["grad_bytes"] + x["state_bytes"] for x in layers)
        total += sum(x["costs"][-1]["saved_bytes"] + x["costs"][-1]["out_bytes"] for x in layers)
        total += max(x["costs"][-1]["backward_peak_bytes"] for x in layers)
    return total


def build_options(bench: Bench) -> list[object]:
    """How plans are built for the suite's machine."""
    host = int(bench.host_bytes * HOST_SHARE)
    return ["--host-memory", host, "--time-limit", 5 if bench.tiny else BUILD_SECONDS]


def found_plan(bench: Bench, name: str) -> Path | None:
    """The plan of this name: made before, or by an earlier suite; Skip when none can be made."""
    path = bench.file("plans", f"{name}.json")
    if path.exists():
        return path
    if bench.plans and (bench.plans / path.name).exists():
        shutil.copy(bench.plans / path.name, path)
        return path
    if not has_planner():
        raise Skip(f"no solver (pulp, highspy) here, and no {path.name} given with --plans")
    return None


def smallest_budget(bench: Bench, work: Workload) -> int:
    """The least device memory that the workload can be trained with, in the planner's words."""
    name = f"smallest-{work.name}"
    command = ["-m", "planner", "build", profile(bench, work), "--device-memory", 1]
    target = bench.file("plans", f"{name}.json")
    done = python(bench, [*command, "-o", target, *build_options(bench)], {}, name)
    least = SMALLEST.search(done.err)
    if not least:
        raise Trouble(f"{name}: {done.said}")
    return int(least[1])


def build(bench: Bench, work: Workload, budgets: Mapping[str, int], wanted: str) -> Path:
    """The plan `wanted`; all plans in `budgets`, bytes by plan name, are tried once, side by side,
    but for tiny models.

    Trouble when there is none, with what the planner said.
    """
    found = found_plan(bench, wanted)
    if found:
        return found
    source = profile(bench, work)

    def one(name: str) -> None:
        path, log = bench.file("plans", f"{name}.json"), f"build-{name}"
        if path.exists() or bench.file("logs", f"{log}.txt").exists():
            return
        command = ["-m", "planner", "build", source, "--device-memory", budgets[name], "-o", path]
        python(bench, [*command, *build_options(bench)], {}, log)

    with ThreadPoolExecutor(len(budgets)) as pool:
        list(pool.map(one, [wanted] if bench.tiny else budgets))
    path = bench.file("plans", f"{wanted}.json")
    if not path.exists():
        said = bench.file("logs", f"build-{wanted}.txt").read_text()
        raise Trouble(f"build-{wanted}: {Done(1, '', said).said}")
    return path


def run(bench: Bench, work: Workload, plan: Path) -> dict[str, Any]:
    """Replay the plan once: what `run --json` says, and `step_us` with it."""
    name = plan.stem
    folder, result = bench.file("runs", name), bench.file("runs", f"{name}.json")
    if not result.exists():
        command = ["-m", "tests.gpu.stateless", "run", plan, "-o", folder, "--json"]
        done = succeeded(python(bench, command, work.settings, f"run-{name}"), f"run-{name}")
        found = last_json(done, f"run-{name}") | {"step_us": step_us(folder)}
        result.write_text(json.dumps(found, indent=1))
    content: dict[str, Any] = json.loads(result.read_text())
    return content


def step_us(folder: Path) -> int:
    """Median time of a step, without the first round, which is metered, where there are enough."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines if '"step"' in line]
    ends = sorted(record["at_us"] for record in records if record["type"] == "step")
    spans: list[int] = [b - a for a, b in pairwise(ends)]
    if not spans:
        raise Trouble(f"{folder.name}: fewer than two steps")
    return round(statistics.median(spans[1:] or spans))


def compare(bench: Bench, plan: Path, folder: Path) -> dict[str, Any]:
    """What `planner compare --json` says."""
    name = f"compare-{plan.stem}"
    command = ["-m", "planner", "compare", plan, folder, "--json"]
    return last_json(succeeded(python(bench, command, {}, name), name), name)
