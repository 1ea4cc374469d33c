"""The parts of a whole plan."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from plans.order import Kept, begins_away, first_steps, held, host_bytes, spans
from plans.parts.part import Pair, Part, ProgramPart, SegmentPart
from plans.parts.split import program_parts
from plans.schema import Buffer, Plan, Task
from plans.view import stored


def whole(plan: Plan) -> Part:
    """All of a plan for one process."""
    return parts(plan, [0] * len(plan.devices))[0]


def parts(plan: Plan, ranks: Sequence[int]) -> dict[int, Part]:
    """The parts of all processes, of which ranks[d] has device d. Each has some device."""
    common = _Common(plan, ranks)
    runs: dict[int, dict[int, SegmentPart]] = defaultdict(dict)
    programs: dict[int, list[ProgramPart]] = defaultdict(list)
    numbers: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}
    busy: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    steps = first_steps(plan)
    for index, segment in enumerate(plan.segments):
        owners = tuple(ranks[number] for number in segment.devices)
        key = segment.program, owners
        if key not in numbers:
            made = program_parts(plan.program(segment.program), owners)
            numbers[key] = {rank: len(programs[rank]) for rank in made}
            for rank, one in made.items():
                programs[rank].append(one)
            busy[key] = sorted(rank for rank, one in made.items() if one.busy)
        for rank, number in numbers[key].items():
            one = programs[rank][number]
            known = {*one.memory, *(device for pair in one.crossing for device in pair)}
            runs[rank][index] = SegmentPart(
                program=number,
                devices={local: segment.devices[local] for local in sorted(known)},
                rounds=segment.rounds,
                kinds=segment.kinds,
                steps=steps[index],
                others=_ranges(r for r in busy[key] if r != rank),
            )
    pairs = {rank: _pairs(programs[rank], runs[rank]) for rank in sorted(set(ranks))}
    every = {pair: number for number, pair in enumerate(sorted(set().union(*pairs.values())))}
    return {
        rank: common.part(
            *(rank, programs[rank], runs[rank]),
            pairs={every[pair]: pair for pair in sorted(own)},
            pair_count=len(every),
        )
        for rank, own in pairs.items()
    }


def _pairs(programs: Sequence[ProgramPart], segments: Mapping[int, SegmentPart]) -> set[Pair]:
    """The pairs of devices, the sender first, of a process' X from and to others."""
    return {
        (segment.devices[sender], segment.devices[receiver])
        for segment in segments.values()
        for sender, receiver in programs[segment.program].crossing
    }


def _ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges from one up to another, which is not in it."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return tuple(found)


class _Common:
    """Looked up once for the parts of all processes."""

    def __init__(self, plan: Plan, ranks: Sequence[int]) -> None:
        self._plan, self._ranks = plan, ranks
        self._bytes, self._held, self._spans = host_bytes(plan), held(plan), spans(plan)
        self._buffers = {buffer.name: buffer for buffer in plan.host.buffers}
        self._threads = max(device.threads for device in plan.devices)
        self._away = begins_away(plan)
        self._devices: dict[int, list[int]] = defaultdict(list)  # by process
        self._nodes: dict[int, list[int]] = defaultdict(list)
        for number, (device, rank) in enumerate(zip(plan.devices, ranks, strict=True)):
            self._devices[rank].append(number)
            self._nodes[device.node].append(number)
        self._firsts = {node: min(ranks[d] for d in own) for node, own in self._nodes.items()}
        # From all nodes to node 0 goes what is written to files.
        self._routes = sorted(node for node in self._nodes if node)

    def part(
        self,
        rank: int,
        programs: Sequence[ProgramPart],
        segments: dict[int, SegmentPart],
        *,
        pairs: dict[int, Pair],
        pair_count: int,
    ) -> Part:
        plan, own = self._plan, self._devices[rank]
        node = plan.devices[own[0]].node
        first = self._firsts[node] == rank
        tasks = self._tasks(rank, node, programs)
        routes = {n: one for n, one in enumerate(self._routes) if first and node in (0, one)}
        reached = {n for segment in segments.values() for n in segment.devices.values()}
        return Part(
            devices={number: plan.devices[number] for number in own},
            ranks={number: self._ranks[number] for number in sorted({*own, *reached})},
            node=node,
            node_devices=len(self._nodes[node]),
            first=self._nodes[node].index(own[0]),
            threads=self._threads,
            numerics=plan.numerics,
            tasks=tasks,
            programs=tuple(programs),
            segments=segments,
            store_bytes=self._bytes,
            spans=tuple(self._spans[node]),
            held=_by_task(self._held[node], tasks),
            buffers=self._named(tasks, programs),
            away=tuple(task.name for task in tasks if task.name in self._away),
            pairs=pairs,
            pair_count=pair_count,
            routes=routes,
            route_count=len(self._routes),
            firsts={n: self._firsts[n] for n in (0, *routes.values())} if routes else {},
        )

    def _tasks(self, rank: int, node: int, programs: Iterable[ProgramPart]) -> tuple[Task, ...]:
        names = {name for program in programs for name in program.tasks}
        if self._firsts[node] == rank:
            names |= {name for name, _ in self._held[node]}
        return tuple(task for task in self._plan.tasks if not rank or task.name in names)

    def _named(self, tasks: Iterable[Task], programs: Iterable[ProgramPart]) -> tuple[Buffer, ...]:
        """The host buffers that keep these tasks, and those of the programs' ops."""
        names = {name for task in tasks for name in stored(task)}
        for program in programs:
            for op in program.ops:
                names.update(op.reads.values(), op.writes.values())
        return tuple(b for b in self._buffers.values() if b.name in names)


def _by_task(shards: Iterable[Kept], tasks: Iterable[Task]) -> dict[str, tuple[int, ...]]:
    """The numbers of these shards, of these tasks."""
    names, found = {task.name for task in tasks}, defaultdict[str, list[int]](list)
    for name, number in sorted(shards):
        if name in names:
            found[name].append(number)
    return {name: tuple(numbers) for name, numbers in found.items()}
