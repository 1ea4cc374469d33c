"""Plans of at most a quarter of a MB that would cost a careless checker hours or all memory.

Each is a handmade plan with a part of it blown up; none is sound.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from support.handmade import PLANS, large
from support.kinded import kinded

from plans.schema import Plan

MOST_BYTES = 1 << 18
BIG = 1 << 50

Tree = dict[str, Any]


def tree(name: str) -> Tree:
    return _plain(PLANS[name]())


def _plain(plan: Plan) -> Tree:
    made: Tree = msgspec.json.decode(msgspec.json.encode(plan))
    return made


def _cut(rows: list[Any], base: Tree) -> list[Any]:
    """As many of these rows as fit into the file beside the rest."""
    room = MOST_BYTES - len(msgspec.json.encode(base)) - 4096
    size, kept = 0, []
    for row in rows:
        size += len(msgspec.json.encode(row)) + 1
        if size > room:
            break
        kept.append(row)
    return kept


def _op(name: str, stream: str, **fields: Any) -> Tree:
    return {"id": name, "stream": stream, "start_us": 0, "end_us": 0, **fields}


def endless_evaluations() -> Tree:
    plan = tree("resident")
    plan["tasks"][0] |= {"steps": BIG, "evaluation": {"every": 2, "batches": 1}}
    return plan


def endless_rounds() -> Tree:
    """Rounds that would all run at the same time."""
    plan = tree("resident")
    plan["tasks"][0]["steps"] = plan["segments"][0]["rounds"] = BIG
    plan["programs"][0] |= {"period_us": 0, "round_us": BIG}
    return plan


def many_reaches() -> Tree:
    """Segments of every length whose rounds reach far into each other."""
    plan = _plain(large(375))
    program, (segment,) = plan["programs"][0], plan["segments"]
    program["period_us"] = program["round_us"] // 60
    plan["segments"] = [segment | {"rounds": n} for n in range(1, 250)]
    return plan


def endless_microbatches() -> Tree:
    plan = tree("streamed")
    plan["tasks"][0] |= {"microbatches": BIG // 4, "batch": BIG}
    return plan


def many_ties() -> Tree:
    """Many groups of layers in a task of many shards and ops."""
    plan = _plain(large(375))
    task = plan["tasks"][0]
    task |= {"tie_bytes": 4, "ties": []}
    last = task["shards"][-1]["end_layer"] - 1
    task["ties"] = _cut([[0, last - k % 2] for k in range(200_000)], plan)
    return plan


def strange_tasks() -> Tree:
    """A program of many unknown tasks, in many segments, with ops of none of them."""
    plan = tree("resident")
    plan["programs"][0]["tasks"] = ["a", *(f"t{n}" for n in range(10_000))]
    plan["programs"][0]["round"] += [_op(f"z.s0.B{n}", "0.compute") for n in range(750)]
    plan["segments"] = _cut(plan["segments"] * 20_000, plan)
    return plan


def strange_edges() -> Tree:
    """An op that waits for many that are not there, and one that waits for itself often."""
    plan = tree("resident")
    first, second, *_ = plan["programs"][0]["round"]
    second["after"] = [second["id"]] * 5_000
    first["after"] = _cut([f"x{n}" for n in range(200_000)], plan)
    return plan


def many_streams() -> Tree:
    """A device of its own for every copy."""
    plan = tree("resident")
    program = plan["programs"][0]
    rows = [
        (
            _op(
                f"a.s0.P{n + 9}",
                f"{n}.h2d",
                reads={"param": "a.s0.param"},
                writes={"param": f"{n}"},
            ),
            {"name": f"{n}", "space": str(n), "offset": 0, "bytes": 512},
            program["memory"][0],
            plan["devices"][0],
            n,
        )
        for n in range(1, 10_000)
    ]
    ops, buffers, memory, devices, numbers = zip(*_cut(rows, plan), strict=True)
    program["memory"] += memory
    program["round"] += ops
    program["buffers"] += buffers
    plan["devices"] += devices
    plan["segments"][0]["devices"] += numbers
    plan["prediction"]["makespan_us"] += 1
    return plan


def many_races() -> Tree:
    """Everything at the same bytes, and nothing waits."""
    plan = _plain(large(750))
    for buffer in plan["programs"][0]["buffers"]:
        buffer["offset"] = 0
    for op in plan["programs"][0]["round"]:
        op["after"] = []
    return plan


def many_ends() -> Tree:
    """Host buffers of many lengths at one place, each written by many streams."""
    plan = _plain(large(625))
    for number, buffer in enumerate(plan["host"]["buffers"]):
        buffer |= {"offset": 0, "bytes": 4096 + number}
    for op in plan["programs"][0]["round"]:
        op["after"] = []
    return plan


def many_rings() -> Tree:
    plan = _plain(large(750))
    ops = plan["programs"][0]["round"]
    for op in ops:
        op["after"] = [ops[-1]["id"]]
    return plan


def missing_ops() -> Tree:
    """Many programs, none of which has an op of a task of many shards."""
    plan = tree("resident")
    task, program = plan["tasks"][0], plan["programs"][0]
    shard = task["shards"][0] | {"in_bytes": 256}
    task["shards"] = [shard | {"first_layer": n, "end_layer": n + 1} for n in range(375)]
    small = program | {"buffers": [], "enter": [], "round": program["round"][:1], "leave": []}
    plan["programs"] = _cut([small | {"name": f"p{n}"} for n in range(9999)], plan)
    plan["segments"][0]["program"] = "p0"
    return plan


def many_stays() -> Tree:
    """Two tasks of many shards that come and go often, in the same bytes."""
    plan = tree("fleet")
    for task in plan["tasks"]:
        shard = task["shards"][0] | {"in_bytes": 256}
        task["shards"] = [shard | {"first_layer": n, "end_layer": n + 1} for n in range(225)]
        plan["host"]["buffers"] += [
            {"name": f"{task['name']}.s{n}.state", "space": "host", "offset": 0, "bytes": 768}
            for n in range(9, 225)
        ]
    moved = [segment | {"read_us": 0, "write_us": 0} for segment in plan["segments"]]
    plan["segments"] = _cut(moved * 20_000, plan)
    return plan


def many_kinds() -> Tree:
    """As many kinds of rounds as may be, in turn and back again, after a long enter."""
    turn = [*range(64), *range(62, -1, -1)]
    plan = _plain(kinded("resident", [[512, 512]] * 64, tuple((kind, 1) for kind in turn)))
    program = plan["programs"][0]
    again = program["enter"][0] | {"start_us": program["enter_us"], "end_us": program["enter_us"]}
    program["enter"] += _cut([again | {"id": f"a.s0.P{n}"} for n in range(2, 20_000)], plan)
    plan["prediction"]["makespan_us"] += 1
    return plan


def many_runs() -> Tree:
    """Runs of one round each, and a kind that is not there among them."""
    plan = _plain(kinded("resident", [[512, 512]] * 3, ((0, 1), (1, 1))))
    runs = _cut([[n % 3, 1] for n in range(1 << 20)], plan)
    plan["segments"][0] |= {"rounds": len(runs), "kinds": runs}
    plan["tasks"][0]["steps"] = len(runs)
    return plan


def too_many_kinds() -> Tree:
    """Thousands of kinds, and a segment that has them all."""
    plan = _plain(kinded("resident", [[512, 512], [256]], ((0, 1), (1, 1))))
    program = plan["programs"][0]
    kind = program["kinds"][0] | {"ops": program["kinds"][0]["ops"][:1]}
    program["kinds"] = _cut([kind] * 20_000, plan)[:-150]
    count = len(program["kinds"])
    plan["segments"][0] |= {"rounds": count, "kinds": [[n, 1] for n in range(count)]}
    return plan


def many_programs() -> Tree:
    """Tasks with a program and a segment each, all of which write the same host bytes."""
    plan = tree("resident")
    task, program, segment = plan["tasks"][0], plan["programs"][0], plan["segments"][0]
    text = msgspec.json.encode([task, program, segment, plan["host"]["buffers"]])
    size, count = len(text), 0
    made: list[Any] = [[], [], [], []]
    while size < MOST_BYTES - MOST_BYTES // 16:
        name = f"t{count}".encode()
        parts = text.replace(b'"a.', b'"' + name + b".").replace(b'"a"', b'"' + name + b'"')
        parts = parts.replace(b'"solo"', b'"' + name + b'"')
        one, two, three, buffers = msgspec.json.decode(parts)
        made[0].append(one)
        made[1].append(two)
        made[2].append(three | {"devices": [count]})
        made[3] += buffers
        size += len(parts) + 140
        count += 1
    plan["tasks"], plan["programs"], plan["segments"] = made[:3]
    plan["host"]["buffers"] = made[3]
    plan["devices"] = [plan["devices"][0]] * count
    return plan


def many_segments() -> Tree:
    """Two programs at the same time on the same host bytes, again and again."""
    plan = tree("relay")
    one, two = plan["segments"]
    pair = [one | {"devices": [0]}, two | {"devices": [1]}]
    plan["devices"] *= 2
    plan["segments"] = _cut([pair[n % 2] for n in range(20_000)], plan)
    return plan


def long_names() -> Tree:
    """A name as long as the file, in the lines of many ops."""
    plan = tree("resident")
    for op in plan["programs"][0]["round"]:
        op["after"] = ["x" * 25_000] * 2
    return plan


def long_numbers() -> Tree:
    plan = tree("resident")
    plan["programs"][0]["round"][0]["id"] = f"a.batch.P{'9' * 6000}"
    return plan


def many_devices() -> Tree:
    """A segment on hundreds of thousands of devices."""
    plan = tree("resident")
    plan["segments"][0]["devices"] = _cut([n % 7 for n in range(1 << 20)], plan)
    return plan


def many_bounds() -> Tree:
    plan = tree("resident")
    plan["prediction"]["bounds"] = _cut([{"name": "x", "us": n} for n in range(99_999)], plan)
    return plan


def no_values() -> Tree:
    """Ops of the right shape, in an order in which every value is wrong."""
    plan = _plain(large(750))
    plan["programs"][0]["round"].reverse()
    for op in plan["programs"][0]["round"]:
        op["after"] = []
    return plan


def many_ways() -> Tree:
    """A program that every segment places on nodes in another way."""
    plan = _plain(large(312))
    program, (segment,) = plan["programs"][0], plan["segments"]
    program["memory"] = program["memory"][:1] * 12
    plan["devices"] = [plan["devices"][0] | {"node": n // 12} for n in range(24)]
    ways = ([12 * (way >> k & 1) + k for k in range(12)] for way in range(4096))
    plan["segments"] = _cut([segment | {"devices": way, "rounds": 1} for way in ways], plan)
    return plan


def many_nodes() -> Tree:
    """A device on a node of its own for every segment of one task."""
    plan = _plain(large(150))
    program, (segment,) = plan["programs"][0], plan["segments"]
    program["memory"] = program["memory"][:1] * 2
    long = segment | {"devices": [9999, 9999]}
    rows = _cut([[plan["devices"][0] | {"node": n}, long] for n in range(9999)], plan)
    plan["devices"] = [device for device, _ in rows]
    plan["segments"] = [segment | {"devices": [n, n - 1]} for n in range(1, len(rows))]
    return plan


HOSTILE: dict[str, Callable[[], Tree]] = {
    made.__name__: made
    for made in (
        *(endless_evaluations, endless_rounds, many_reaches, endless_microbatches, many_ties),
        *(strange_tasks, strange_edges, many_streams, many_races, many_ends, many_rings),
        *(missing_ops, many_stays, many_programs, many_segments, long_names, long_numbers),
        *(many_devices, many_bounds, no_values, many_ways, many_nodes),
        *(many_kinds, many_runs, too_many_kinds),
    )
}
