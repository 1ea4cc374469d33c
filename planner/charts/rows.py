"""The rows of a picture and the bars in them: segments over the whole run, or single ops.

Ops have a row per stream, device by device, compute first. Programs on several devices are drawn
as papers draw pipelines: a row per device, microbatches in the boxes, sends as thin arrows.

    0  s0, s2 |0|1|0|1|   |  0  |  1  |      kinds differ in hue, the shards of a device in tone
    1  s1, s3   |0|1|0|  0  |1|  1  |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.charts.bars import Bar, Row
from planner.charts.panels import Mark, Panel, top
from planner.views import Focus, Window, ranges, shards_on, stages
from plans.ops import COPIES, PASSES, Lane, parse_stream
from plans.schema import Plan, Segment
from plans.timing import OpBar, phases, rounds_us, streams
from profiles.units import show_us

_SEGMENTS = Row(0, 1.42, 8, left=True)  # a steady round is framed in the middle
_LABELLED = 40  # devices; of more, only some rows are named
_LETTER = 0.13  # inches a line of text is high
_THIN = 0.3  # of a segment's bar: enter and leave
_LANES = {Lane.COMPUTE: Row(0, 1.0), Lane.HOST: Row(0, 0.5, 6)}
_COPIES = Row(0, 0.4, 6)
_APART = 0.45  # more between two devices of several rows each
TONE = 0.35  # of a device's only shard
_TONES = (0.1, 0.65)  # of its first shard and of its last
Held = Mapping[str, Mapping[str, Mapping[int, tuple[int, ...]]]]
_LONGEST = 20  # letters of the names of a device's shards


def overview(plan: Plan, title: str, marks: Sequence[Mark], near: Focus | None) -> Panel:
    """A row per device with the segments of the whole run, thin ends load and store; and a frame
    around what is in focus, however short it is."""
    count, every = len(plan.devices), -(-len(plan.devices) // _LABELLED)
    height, pitch = min(0.46 * max(count, 1.5), 6.0), _SEGMENTS.height + 0.4
    names = [f"{n}  {d.name}" if n % every == 0 else "" for n, d in enumerate(plan.devices)]
    rows = [_SEGMENTS._replace(low=-n * pitch, name=name) for n, name in enumerate(names)]
    lines = height / (count * pitch) * _SEGMENTS.height / _LETTER  # of text in a row
    bars = [
        bar
        for segment in plan.segments
        for device in segment.devices
        for bar in _stripes(plan, segment, rows[device], lines)
    ]
    framed = plan.segments[near.segment].devices if near else ()
    boxes = [(near.window, rows[device].part(-0.06, 1.12)) for device in framed if near]
    note = "; thin: loads before, stores after the rounds"
    return Panel(height, rows, bars, (0, plan.prediction.makespan_us), title, marks, boxes, note)


def _stripes(plan: Plan, segment: Segment, row: Row, lines: float) -> Iterator[Bar]:
    """A stripe of a device's row for each task of a segment, named where a line of text fits."""
    program = plan.program(segment.program)
    _, first, *_, leave = (phase.start_us for phase in phases(program, segment))
    rounds = f"{segment.rounds} round{'s' if segment.rounds > 1 else ''}"
    period, count = rounds_us(program, segment) // segment.rounds, len(program.tasks)
    for number, task in enumerate(program.tasks):
        stripe = row.part(1 - (number + 1) / count, 1 / count)
        thin = stripe.part((1 - _THIN) / 2, _THIN)
        names = (f"{task}: {rounds} of {show_us(period)}", task) if lines >= count else ()
        yield Bar(stripe, task, "B", names, first, leave - first)
        yield Bar(thin, task, "B", (), segment.start_us, first - segment.start_us)
        yield Bar(thin, task, "B", (), leave, segment.end_us - leave)


@dataclass(frozen=True)
class OpRows:
    """The rows of streams, and how ops look in them. held: by program and task the shards of its
    devices, where drawn as a pipeline. alone: there is one task, whose name ops leave out."""

    plan: Plan
    rows: Mapping[str, Row]
    held: Held
    alone: bool

    @property
    def piped(self) -> bool:
        """The ops are drawn as a pipeline."""
        return bool(self.held)

    def bars(self, ops: Iterable[OpBar]) -> list[Bar]:
        """The bars of ops whose streams have rows, and the arrows of sends between two rows."""
        spaces = {p.name: {b.name: b.space for b in p.buffers} for p in self.plan.programs}
        found: list[Bar] = []
        for op in ops:
            times, segment = (op.start_us, op.us, op.period_us, op.rounds), self._segment(op)
            if row := self.rows.get(op.stream):
                names = self.names(op)
                found.append(Bar(row, op.task, op.kind, names, *times, self.tone(op)))
            if self.piped and op.kind == "X":
                (buffer,), places = op.op.writes.values(), spaces[segment.program]
                to = segment.devices[int(places[buffer])] if buffer in places else None
                here, there = (self.rows.get(f"{device}.compute") for device in (op.device, to))
                if here and there:
                    found.append(Bar(here, op.task, op.kind, (), *times, to=there))
        return found

    def names(self, op: OpBar) -> tuple[str, ...]:
        """The name of an op, without its task, and in a pipeline the microbatch of a pass, the kind
        of other compute: from long to short, no longer than what tells it from others."""
        name = op.op.id.partition(".")[2]
        names = (name,) if self.alone else (op.op.id, name)
        if not self.piped or op.kind in COPIES:
            return names
        short = str(op.microbatch if op.kind in PASSES else op.kind)
        return (short,) if self.alone and len(self._shards(op)) < 2 else (*names, short)

    def tone(self, op: OpBar) -> float | None:
        """From dark to light in the order of a device's shards, in a pipeline."""
        if not self.piped:
            return None
        mine, (first, last) = self._shards(op), _TONES
        if len(mine) < 2 or op.shard not in mine:
            return TONE
        return first + (last - first) * mine.index(op.shard) / (len(mine) - 1)

    def _segment(self, op: OpBar) -> Segment:
        return self.plan.segments[op.segment]

    def _shards(self, op: OpBar) -> tuple[int, ...]:
        """The shards of its task on its device."""
        own = self.held[self._segment(op).program].get(op.task, {})
        return own.get(op.op.queue.device, ())

    def panel(
        self,
        ops: Iterable[OpBar],
        window: Window,
        title: str,
        marks: Sequence[Mark] = (),
        *,
        large: bool = False,
    ) -> Panel:
        """These ops within a window; `large` gives few rows more room. Many rows get less."""
        rows = list(self.rows.values())
        units = top(rows)
        height = min(units * 0.36, max(9.0, units * 0.2))
        if large:
            height = max(height, min(2.1, units * 0.8))
        bars = self.bars(ops)
        several = any(bar.tone not in (None, TONE) for bar in bars)
        note = "; of a device's shards the first is darkest" * several
        return Panel(height, rows, bars, window, title, marks, note=note)


def op_rows(plan: Plan, shown: Sequence[Segment] | None = None, *, copies: bool = False) -> OpRows:
    """A row for each stream that these segments' devices use, by default all; or if a program of
    theirs is on several devices, rows of a pipeline: compute, updates on the host, and the other
    streams only with `copies`."""
    segments = plan.segments if shown is None else shown
    devices = {device for segment in segments for device in segment.devices}
    lanes, held, gap = set(Lane), {}, 0.12
    if any(len(segment.devices) > 1 for segment in segments):
        lanes, gap = set(Lane) if copies else {Lane.COMPUTE, Lane.HOST}, 0.3  # arrows cross it
        held = {
            program.name: {task: shards_on(stages(program, task)) for task in program.tasks}
            for program in plan.programs
        }
    used = [stream for stream in streams(plan) if parse_stream(stream).device in devices]
    rows = _stacked([stream for stream in used if parse_stream(stream).lane in lanes], gap)
    for device in devices if held else ():
        row = rows[f"{device}.compute"]
        rows[f"{device}.compute"] = row._replace(name=_title(device, segments, held))
    tasks = {task for segment in segments for task in plan.trained(segment)}
    return OpRows(plan, rows, held, alone=len(tasks) == 1)


def _title(device: int, segments: Sequence[Segment], held: Held) -> str:
    """`0  s0, s4`: the shards, where a device has the same of one task in all these segments."""
    own = {
        (task, on[local])
        for segment in segments
        for local, number in enumerate(segment.devices)
        if number == device
        for task, on in held[segment.program].items()
        if local in on
    }
    if len(own) != 1:
        return f"{device}"
    ((_, shards),) = own
    names = ranges(shards)
    return f"{device}  {names if len(names) <= _LONGEST else f'{len(shards)} shards'}"


def _stacked(used: Sequence[str], gap: float) -> dict[str, Row]:
    """The rows of these streams, in order from the top."""
    found: dict[str, Row] = {}
    low, below = 0.0, -1
    apart = _APART * (len({parse_stream(stream).device for stream in used}) < len(used))
    for stream in reversed(used):
        device, lane = parse_stream(stream)
        low += apart if below not in (-1, device) else 0.0
        found[stream] = row = _LANES.get(lane, _COPIES)._replace(low=low, name=stream)
        low, below = low + row.height + gap, device
    return dict(reversed(found.items()))
