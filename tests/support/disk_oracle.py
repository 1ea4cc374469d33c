"""What a plan with a disk would do to bytes, tried in many orders; shares no code with the checker.

Every kept byte of the host store has a label: whose it is, which byte of it, after which segment of
the task. A segment finds its tasks' bytes or does harm; so does what is lost, or never ends.
"""

import random
from dataclasses import dataclass, field
from functools import cached_property

from plans.schema import Buffer, Move, Plan

Label = object

UNIT = 256  # bytes that have one label; all offsets and sizes of these plans are multiples of it


class _Facts:
    """What a plan says, which is the same in every order."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tasks = {program.name: program.tasks for program in plan.programs}

    def task(self, name: str) -> list[Buffer]:
        roles = (".param", ".state")
        buffers = self.plan.host.buffers
        return [b for b in buffers if b.name.startswith(f"{name}.") and b.name.endswith(roles)]

    @cached_property
    def bytes(self) -> dict[str, list[int]]:
        """Of every task, what is kept of it."""
        names = {task.name for task in self.plan.tasks}
        names |= {move.id.split(".")[0] for move in self.moves}
        return {name: [at for b in self.task(name) for at in units(b)] for name in names}

    @cached_property
    def scratch(self) -> dict[str, list[int]]:
        """Of every program, what its ops write beside what is kept."""
        found = {}
        for of in self.plan.programs:
            kept = {b.name for name in of.tasks for b in self.task(name)}
            written = {n for op in (*of.enter, *of.round, *of.leave) for n in op.writes.values()}
            own = (b for b in self.plan.host.buffers if b.name in written - kept)
            found[of.name] = [at for buffer in own for at in units(buffer)]
        return found

    @property
    def moves(self) -> list[Move]:
        return list(self.plan.disk.moves) if self.plan.disk else []

    @cached_property
    def needs(self) -> dict[str, set[str]]:
        return _needs(self.plan, self.tasks)


@dataclass
class _World:
    facts: _Facts
    store: dict[int, Label] = field(default_factory=dict)
    files: dict[str, dict[int, Label]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)

    def bytes(self, name: str) -> list[int]:
        return self.facts.bytes[name]

    def write(self, name: str, version: object) -> None:
        self.store |= {at: (name, i, version) for i, at in enumerate(self.bytes(name))}

    def holds(self, name: str, version: object) -> bool:
        mine = enumerate(self.bytes(name))
        return all(self.store.get(at) == (name, i, version) for i, at in mine)


def units(buffer: Buffer) -> range:
    return range(buffer.offset, buffer.offset + buffer.bytes, UNIT)


def disk_harm(plan: Plan, orders: int = 12) -> str | None:
    """What goes wrong in some of so many random orders of what the plan leaves open."""
    facts = _Facts(plan)
    for seed in range(orders):
        if why := _run(facts, random.Random(seed)):
            return f"order {seed}: {why}"
    return None


def _run(facts: _Facts, draw: random.Random) -> str | None:
    plan, needs = facts.plan, facts.needs
    world = _World(facts, versions={task.name: 0 for task in plan.tasks})
    away = _first(plan)
    for name in (*away, *(task.name for task in plan.tasks if task.name not in away)):
        world.write(name, 0)
        if name in away:
            world.files[name] = {at: world.store.pop(at, None) for at in world.bytes(name)}
    running: list[str] = []
    done: set[str] = set()
    while len(done) < len(plan.segments) + len(facts.moves):
        ready = [n for n in needs if n not in done and n not in running and needs[n] <= done]
        if not ready and not running:
            return "nothing can begin any more"
        node = draw.choice(sorted(ready) + running)
        begin = node not in running
        step = _segment(world, node, begin) if node.isdigit() else _move(world, node, begin)
        if step:
            return f"{'start' if begin else 'end'} of {node}: {step}"
        if begin:
            running.append(node)
        else:
            running.remove(node)
            done.add(node)
    return _over(world)


def _over(world: _World) -> str | None:
    """Every task is whole in the end, in the store or on the disk."""
    for name, version in world.versions.items():
        last = world.files.get(name, {})
        mine = [last.get(at) for at in world.bytes(name)]
        if not world.holds(name, version) and mine != [
            (name, i, version) for i in range(len(mine))
        ]:
            return f"the last state of {name} is lost"
    return None


def _first(plan: Plan) -> list[str]:
    """The tasks that begin on the disk."""
    first: dict[str, str] = {}
    for move in plan.disk.moves if plan.disk else ():
        first.setdefault(move.id.split(".")[0], move.id.split(".")[2])
    return [name for name, kind in first.items() if kind.startswith("P")]


def _needs(plan: Plan, tasks: dict[str, tuple[str, ...]]) -> dict[str, set[str]]:
    needs: dict[str, set[str]] = {}
    for index, one in enumerate(plan.segments):
        needs[str(index)] = {
            str(other)
            for other in range(index)
            for two in [plan.segments[other]]
            if {*one.devices} & {*two.devices} or {*tasks[one.program]} & {*tasks[two.program]}
        }
    before = None
    for move in plan.disk.moves if plan.disk else ():
        needs[move.id] = {before} if before else set()
        if ".S" in move.id:
            needs[move.id].add(str(move.segment))
        elif str(move.segment) in needs:
            needs[str(move.segment)].add(move.id)
        before = move.id
    return needs


def _segment(world: _World, node: str, begin: bool) -> str | None:
    """What a segment does to the host store: it changes what its tasks keep, and uses scratch."""
    program = world.facts.plan.segments[int(node)].program
    for name in world.facts.tasks[program]:
        if not world.holds(name, world.versions[name] if begin else node):
            return f"the state of {name} is not where it should be"
    for at in world.facts.scratch[program]:
        if not begin and world.store.get(at) != ("scratch", node):
            return f"byte {at} was written by somebody else"
        if begin or at in world.store:
            world.store[at] = ("scratch", node)
    for name in world.facts.tasks[program]:
        world.versions[name] += not begin
        world.write(name, node if begin else world.versions[name])
    return None


def _move(world: _World, node: str, begin: bool) -> str | None:
    name, places = node.split(".")[0], world.bytes(node.split(".")[0])
    if ".S" in node:
        if not world.holds(name, world.versions[name]):
            return "what it writes to the disk is not the task's state"
        if not begin:
            world.files[name] = {at: world.store[at] for at in places}
            for at in places:
                del world.store[at]
        return None
    if name not in world.files:
        return "there is nothing on the disk"
    if begin:
        world.store |= dict.fromkeys(places, ("loading", node))
        return None
    if any(world.store.get(at) != ("loading", node) for at in places):
        return "somebody wrote to where it reads from the disk"
    world.store |= world.files.pop(name)
    return None
