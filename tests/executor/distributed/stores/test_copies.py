"""Where the latest state of each shard is, as a run goes on."""

from support.handmade import assemble, program
from support.netted import on_nodes
from support.parts import resident_part
from support.streaming import streamed_part

from executor.distributed.stores import Copies
from plans.order import held, spans


def test_whoever_trains_a_task_has_it_until_it_is_copied() -> None:
    """Task a is trained on node 0 and on node 1, b on node 1 alone."""
    parts = [streamed_part("a", shards=2), resident_part("b")]
    programs = [program(part.task.name, 1, [part]) for part in parts]
    plan = assemble(parts, programs, [("a", (0,), 1), ("a", (1,), 1), ("b", (1,), 2)])
    plan = on_nodes(plan, (0, 1))
    assert {name for name, _ in held(plan)[0]} == {"a"}
    assert {name for name, _ in held(plan)[1]} == {"a", "b"}
    copies = Copies(plan)
    assert copies.lacking("a", 0) == {}
    assert copies.lacking("b", 0) == {1: list(range(len(plan.task("b").shards)))}
    copies.trained(0)
    assert copies.lacking("a", 0) == {}
    assert copies.lacking("a", 1) == {0: [0, 1]}
    copies.trained(1)
    assert copies.lacking("a", 0) == {1: [0, 1]}
    copies.copied({("a", 1)}, 0)
    assert copies.lacking("a", 0) == {1: [0]}
    copies.lost({("a", 1)}, 0)
    assert copies.lacking("a", 0) == {1: [0, 1]}


def test_a_node_uses_the_bytes_of_its_own_tasks() -> None:
    """Together the nodes use all, and each what no other one does."""
    parts = [streamed_part("a"), resident_part("b")]
    programs = [program(part.task.name, 1, [part]) for part in parts]
    plan = on_nodes(assemble(parts, programs, [("a", (0,), 2), ("b", (1,), 2)]), (0, 1))
    for node, name in enumerate("ab"):
        own = [b for b in plan.host.buffers if b.name.startswith(f"{name}.")]
        covered = {at for begin, end in spans(plan)[node] for at in range(begin, end)}
        assert covered == {at for b in own for at in range(b.offset, b.offset + b.bytes)}
