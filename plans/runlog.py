"""The run log: what happened, op by op, joined to the plan by (segment, op id, round)."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from plans.additions import Additions
from profiles.codec import read_bytes
from profiles.errors import FormatError
from profiles.schema import Count, Positive, Sha256, Struct

LOG = "log.jsonl"  # in a run's folder


class Header(Struct, frozen=True, kw_only=True, tag="header", tag_field="type"):
    format: Literal["run"] = "run"
    version: Literal[1] = 1
    plan_sha256: Sha256
    started: str  # ISO 8601
    devices: tuple[str, ...]
    software: dict[str, str] = {}
    microbatch: dict[str, Positive]  # of each task
    earlier_microbatch: dict[str, Positive] = {}  # of tasks that go on with another than they had
    additions: dict[str, Additions] = {}  # of tasks of which several devices train a layer
    reordered: dict[str, Positive] = {}  # of tasks whose samples do not come in their own order


class OpRecord(Struct, frozen=True, tag="op", tag_field="type"):
    """Times in µs since the run began, by the clock of process 0. `metered`: run under the memory
    meter, a little slower. `rank`: the process that ran it, where there are several."""

    segment: Count
    op: str
    round: Count  # 0 for ops of enter and leave
    start_us: Count
    end_us: Count
    metered: bool = False
    rank: Count | msgspec.UnsetType = msgspec.UNSET


class StepRecord(Struct, frozen=True, tag="step", tag_field="type"):
    """loss is the mean over the step's microbatches; None when it is not a number."""

    task: str
    step: Count
    loss: float | None
    at_us: Count


class EvaluationRecord(Struct, frozen=True, tag="evaluation", tag_field="type", omit_defaults=True):
    """loss: the mean over the batches, with the parameters after so many steps; None when it is
    not a number. metrics: the means over their samples."""

    task: str
    step: Count
    loss: float | None
    at_us: Count
    metrics: dict[str, float | None] = {}


class CheckpointRecord(Struct, frozen=True, tag="checkpoint", tag_field="type", omit_defaults=True):
    """A task's whole state after so many steps was written to the run's folder.

    beside: the other tasks of its program, kept in the same moment, and their steps. One line says
    so, of which a kill leaves all or nothing; `read` gives each task a record of its own."""

    task: str
    step: Count
    at_us: Count
    beside: dict[str, Count] = {}


class DropRecord(Struct, frozen=True, tag="drop", tag_field="type"):
    """A task that failed, while others went on: in which step, and in which op, if it was one.

    at_us: when the run knew of it.
    """

    task: str
    step: Count
    op: str
    reason: str
    at_us: Count


class StopRecord(Struct, frozen=True, tag="stop", tag_field="type"):
    """A task that a rule ended after so many steps, its state whole."""

    task: str
    step: Count
    rule: str
    at_us: Count


class RestartRecord(Struct, frozen=True, tag="restart", tag_field="type"):
    """The run began again: of what was before only the lines stand above that its tasks go on from.

    error: why it had ended; empty where it was killed. start_us: the time until then since the
    process began, or since its latest step if it goes on by another plan; 0 where it was not
    measured. The first op begins somewhat later."""

    error: str
    at_us: Count
    start_us: Count = 0


class End(Struct, frozen=True, kw_only=True, tag="end", tag_field="type"):
    """peak_bytes: per device, slab in use plus the largest transients seen.

    status "partial": some tasks were dropped, all others were trained to their end. "interrupted":
    a signal ended the run.
    """

    status: Literal["ok", "partial", "failed", "interrupted"]
    error: str = ""
    actual_us: Count
    peak_bytes: tuple[Count, ...]
    host_bytes: Count


Line = (
    Header
    | OpRecord
    | StepRecord
    | EvaluationRecord
    | CheckpointRecord
    | DropRecord
    | StopRecord
    | RestartRecord
    | End
)
L = TypeVar("L")


class RunLog(msgspec.Struct, frozen=True):
    header: Header
    ops: tuple[OpRecord, ...]
    steps: tuple[StepRecord, ...]
    end: End | None  # None: the run was killed before it could say how it ended
    checkpoints: tuple[CheckpointRecord, ...] = ()
    drops: tuple[DropRecord, ...] = ()
    stops: tuple[StopRecord, ...] = ()
    evaluations: tuple[EvaluationRecord, ...] = ()
    restarts: tuple[RestartRecord, ...] = ()


def encode(lines: Iterable[Line]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def files(folder: str | Path) -> list[Path]:
    """The logs in a run's folder, oldest first; of a log's own path, that log."""
    path = Path(folder)
    if not os.path.isdir(path):  # also where no path can be so long
        return [path]
    earlier = {int(log.suffixes[0][1:]): log for log in path.glob("log.[0-9]*.jsonl")}
    return [*(earlier[number] for number in sorted(earlier)), path / LOG]


def part_of(folder: Path, rank: int) -> Path:
    """Where process `rank` of several writes its own ops while a run goes on."""
    return folder / f"{LOG}.{rank}"


def parts(folder: Path) -> list[Path]:
    """The files in which processes write their own ops while a run goes on, by number."""
    return sorted(folder.glob(f"{LOG}.[0-9]*"))


def load(path: str | Path) -> RunLog:
    """The log in `path`, a run's folder or a log itself; FormatError with the line number
    otherwise."""
    header, lines = read(path)

    def every(kind: type[L]) -> tuple[L, ...]:
        return tuple(line for line in lines if isinstance(line, kind))

    return RunLog(
        header=header,
        ops=every(OpRecord),
        steps=every(StepRecord),
        end=next(iter(every(End)[-1:]), None),
        checkpoints=every(CheckpointRecord),
        drops=every(DropRecord),
        stops=every(StopRecord),
        evaluations=every(EvaluationRecord),
        restarts=every(RestartRecord),
    )


def _each(line: Line) -> Iterable[Line]:
    if not isinstance(line, CheckpointRecord):
        return (line,)
    steps = {line.task: line.step} | line.beside
    return (CheckpointRecord(task, step, line.at_us) for task, step in steps.items())


def starts_us(path: str | Path) -> list[int]:
    """The time of each start that a run went on with, until its first op, as far as that was
    measured. `path`: its folder, or a log. A log begins with the restarts of those before it."""
    found: dict[RestartRecord, int] = {}
    for log in map(load, files(path)):
        for one in log.restarts:
            first = min((op.start_us for op in log.ops if op.start_us >= one.at_us), default=None)
            if one not in found and one.start_us and first is not None:
                found[one] = one.start_us + first - one.at_us
    return [*found.values()]


def read(path: str | Path) -> tuple[Header, list[Line]]:
    """The header and all other lines of a log in their order; FormatError as of `load`.

    What other processes have written comes last. A last line without its end, of a run that was
    killed while it wrote, is left out."""
    path, decoder = files(path)[-1], msgspec.json.Decoder(Line)
    rows, lines = read_bytes(path).split(b"\n")[:-1], list[Line]()
    for part in parts(path.parent) if path.name == LOG else ():
        known = {*rows}  # a run was killed when it had put some of them there
        rows += [row for row in part.read_bytes().split(b"\n")[:-1] if row not in known]
    alien = f"{path}: line 1: this is not a run log, which begins with a header"
    for number, row in enumerate(rows, 1):
        try:
            lines += _each(decoder.decode(row))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            where = f"{path}: line {number}" if lines else alien
            raise FormatError(
                f"{where}: {error}; give the folder of a run, or its log as it wrote it"
            ) from None
    if not lines or not isinstance(lines[0], Header):
        raise FormatError(f"{alien}; give the folder of a run")
    return lines[0], lines[1:]
