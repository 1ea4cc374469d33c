"""`gantry train`: from a workload to its trained tasks, by the commands that do each part.

    runs/x/train.json      what was asked of profile and build
           profile.json    as profile writes it
           plan.json       as build writes it
           log.jsonl, ...  as of every run

A step is left out where its file is of the same words and the same input, so the same command goes
on from wherever it was ended. Once the run has begun its folder is what it is: other words are
refused, and whether the workload is still the same, `run` says.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from profiles import console
from profiles.codec import file_sha256, read_bytes, write_atomic
from profiles.errors import FormatError

Words = list[str]

_TO = {
    "profile": "--device --device-memory --host-memory --devices --samples --h2d --d2h --p2p "
    "--latency-us --slow-compute --disk --task --batch --seq --steps --lr --precision --lengths",
    "build": "--devices --microbatch --layout --order --packing --objective --time-limit --jobs",
    "run": "--save --report --stall-seconds --grace --stop-above",
}
_SWITCHES = {
    "profile": "--no-cache --tf32 --deterministic",
    "run": "--overwrite --keep-going --trust-workload --json",
}
"""Which command an option is for; one that several know goes to each of them."""


def main(arguments: Sequence[str], become: Callable[[str, Words], NoReturn]) -> int:
    """Do all that is left to do, in the end as `run`; the exit code of the first that fails."""
    parser = console.Parser(prog="gantry train", description="Profile, plan, check and run.")
    text = "as of profile: file.py:function, package.module:function, or hf:NAME"
    parser.add_argument("workload", help=text)
    text = "folder of the run, its profile and its plan; the same command again goes on from there "
    text += "(default runs/<the file's name>)"
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help=text)
    for table, kind in ((_TO, {"action": "append"}), (_SWITCHES, {"action": "store_true"})):
        for flag in dict.fromkeys(" ".join(table.values()).split()):
            names = [name for name, flags in table.items() if flag in flags.split()]
            parser.add_argument(flag, help=f"as of {' and '.join(names)}", **kind)
    parser.set_defaults(command=lambda given: _train(given, become), again=console.AGAIN)
    return console.run(parser, arguments)


def _train(given: argparse.Namespace, become: Callable[[str, Words], NoReturn]) -> int:
    name = Path(given.workload.removeprefix("hf:").partition(":")[0].removesuffix(".py")).name
    folder: Path = given.output or Path("runs") / name
    plan, asked = folder / "plan.json", {"workload": [given.workload]}
    asked |= {command: _words(given, command) for command in ("profile", "build")}
    if given.overwrite or not (folder / "log.jsonl").exists():
        if code := _made(folder, asked):
            return code
    elif _known(folder) != asked:
        raise FormatError(
            f"{folder}: its run was begun with other options, those in {folder / 'train.json'}; "
            "give these, or another folder, -o runs/y, or --overwrite to write over the run"
        )
    return become("executor", ["run", str(plan), "-o", str(folder), *_words(given, "run")])


def _made(folder: Path, asked: dict[str, Words]) -> int:
    """Profile, plan and check, as far as the files do not do; the exit code."""
    profile, plan, known = folder / "profile.json", folder / "plan.json", _known(folder)
    if known != asked:
        same = all(known.get(name) == asked[name] for name in ("workload", "profile"))
        for path in (plan, *([] if same else [profile])):
            path.unlink(missing_ok=True)
        write_atomic(folder / "train.json", json.dumps(asked, indent=1).encode() + b"\n")
    measure = ["profile", *asked["workload"], *asked["profile"], "--keep", "-o", str(profile)]
    if code := _run("executor", measure):
        return code
    if not plan.exists() or json.loads(read_bytes(plan))["inputs"] != _inputs(profile):
        # A planner that outlives this process, which is killed, writes where nobody looks.
        with TemporaryDirectory(prefix=".plan-", dir=folder) as own:
            made = Path(own, plan.name)
            words = ["build", str(profile), *asked["build"], "-o", str(made)]
            if code := _run("planner", words, (str(made), str(plan))):
                return code
            for file in sorted(made.parent.iterdir(), key=made.__eq__):  # tables first
                file.replace(folder / file.name)
    return _run("planner", ["check", str(plan)])


def _words(given: argparse.Namespace, command: str) -> Words:
    """The options that go to a command, as they were typed."""
    said, words = vars(given), Words()
    for flag in f"{_TO.get(command, '')} {_SWITCHES.get(command, '')}".split():
        value = said[flag.removeprefix("--").replace("-", "_")]
        words += [flag] if value is True else [w for one in value or () for w in (flag, one)]
    return words


def _known(folder: Path) -> dict[str, Words]:
    """The words of each command that was asked before; none where that is not known."""
    path = folder / "train.json"
    try:
        known = json.loads(read_bytes(path)) if path.exists() else {}
    except ValueError:
        known = {}
    return known if isinstance(known, dict) else {}


def _inputs(profile: Path) -> dict[str, str]:
    return {"profile": file_sha256(profile)}


def _run(package: str, words: Words, named: tuple[str, str] = ("", "")) -> int:
    """The exit code of a command. Its results are progress here, and so go to stderr; named: a file
    that they tell of, and what they call it."""
    command = [sys.executable, "-m", package, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(done.stdout.replace(*named) if named[0] else done.stdout, end="", file=sys.stderr)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode
