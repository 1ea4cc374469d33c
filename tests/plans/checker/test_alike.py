"""What is proven once is proven for programs that are alike, and for no others."""

from functools import cache
from itertools import count

from msgspec import structs
from support import synthetic
from support.searches import QUICK

from planner.builder import build
from planner.search.shapes import renamed
from plans.checker import alike, check
from plans.checker.check import violations
from plans.schema import Plan


@cache
def twins() -> Plan:
    """Three tasks of one shape, the names of which are parts of each other and of buffers'."""
    task = synthetic.task("t", layers=4, seed=1, batch=2, param_bytes=1 << 20)
    tasks = [structs.replace(task, name=name) for name in ("t", "t-t", "s0")]
    problem = synthetic.problem(*tasks, usable_bytes=5 << 20)
    return build(problem, profile_sha256="0" * 64, limits=QUICK)


def test_programs_that_are_alike_are_proven_once(monkeypatch) -> None:
    """The rules about one program run for the first of three tasks of a shape."""
    plan, looked_at = twins(), []
    inner = check._inside

    def counted(found, what):
        looked_at.append(what.view.program.name)
        return inner(found, what)

    monkeypatch.setattr(check, "_inside", counted)
    assert violations(plan) == []
    assert looked_at == [plan.programs[0].name]


def test_any_change_of_one_of_them_is_found(monkeypatch) -> None:
    """Each op of each twin without what it waits for: the same violations as where all programs
    are proven by themselves."""
    plan = twins()
    changed = []
    for at, program in enumerate(plan.programs):
        for place, op in enumerate(program.round):
            if op.after:
                ops = list(program.round)
                ops[place] = structs.replace(op, after=())
                other = structs.replace(program, round=tuple(ops))
                programs = (*plan.programs[:at], other, *plan.programs[at + 1 :])
                changed.append(structs.replace(plan, programs=programs))
    changed = changed[::7]
    found = [violations(one) for one in changed]
    assert sum(map(bool, found)) > len(found) // 2
    serial = count()
    monkeypatch.setattr(check, "likeness", lambda view: next(serial))
    assert found == [violations(one) for one in changed]


def test_a_task_called_like_a_stream_is_like_no_other() -> None:
    """Its name could not be told from that of the stream."""
    plan = twins()
    tasks = {task.name: task for task in plan.tasks}
    host = {buffer.name: buffer for buffer in plan.host.buffers}
    likes = set()
    for name in ("0", "1", "host"):
        program = renamed(plan.programs[0], name)
        own = {name: structs.replace(tasks["t"], name=name)}
        mine = {
            name + key[1:]: structs.replace(buffer, name=name + key[1:])
            for key, buffer in host.items()
            if key.startswith("t.")
        }
        likes.add(alike.likeness(check.view(program, own, mine)))
    assert len(likes) == 3


def test_likeness_sees_sizes_and_places() -> None:
    """Another offset, a longer buffer, or another shard makes another program."""
    plan = twins()
    tasks = {task.name: task for task in plan.tasks}
    host = {buffer.name: buffer for buffer in plan.host.buffers}
    views = [check.view(program, tasks, host) for program in plan.programs]
    likes = [alike.likeness(view) for view in views]
    assert len(set(likes)) == 1
    first, *others = plan.programs[0].buffers
    moved = structs.replace(first, offset=first.offset + 256)
    program = structs.replace(plan.programs[0], buffers=(moved, *others))
    assert alike.likeness(check.view(program, tasks, host)) != likes[0]
    mine = next(name for name in host if name.startswith(f"{program.tasks[0]}."))
    wider = host | {mine: structs.replace(host[mine], bytes=host[mine].bytes + 256)}
    assert alike.likeness(check.view(plan.programs[0], tasks, wider)) != likes[0]
