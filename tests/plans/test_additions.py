"""The order in which gradients are added, read off programs."""

from msgspec.structs import replace
from support import handmade
from support.kinded import kinded

from plans.additions import Addition, added, additions
from plans.schema import Memory, Op, Program


def program(ops: list[Op], devices: int = 2) -> Program:
    """A program of these ops, which is otherwise empty."""
    memory = (Memory(1, 1),) * devices
    return Program("a", memory, ("a",), 0, 1, 1, 0, (), (), tuple(ops), ())


def replicas(*microbatches: tuple[int, ...], shard: int = 0) -> list[Op]:
    """Each device adds such microbatches of a shard; device 0 adds what the others send."""
    ops, item = list[Op](), f"a.s{shard}"
    for device, own in enumerate(microbatches):
        grad = f"grad{shard}.{device}"
        for m in own:
            reads = {"grad": grad} if m != own[0] else {}
            ops.append(Op(f"{item}.B{m}", f"{device}.compute", 0, 1, (), reads, {"grad": grad}))
    for device, own in list(enumerate(microbatches))[1:]:
        there, send = f"other{shard}.{device}", f"{item}.X{device}"
        reads = {"grad": f"grad{shard}.{device}"}
        wait = (f"{item}.B{own[-1]}",)
        ops.append(Op(send, f"{device}.p2p", 0, 1, wait, reads, {"grad": there}))
        both, mine = {"grad": f"grad{shard}.0", "other": there}, {"grad": f"grad{shard}.0"}
        ops.append(Op(f"{item}.R{device}", "0.compute", 0, 1, (send,), both, mine))
    ops.append(Op(f"{item}.U0", "0.compute", 0, 1, (), {"grad": f"grad{shard}.0"}, {}))
    return ops


def test_replicas_are_added_as_they_come() -> None:
    """Each with its own microbatches first."""
    assert additions(handmade.parallel()) == {"a": (Addition(0, 2, "(0)+(1)"),)}
    made = program(replicas((0, 3), (1, 4), (2,)), 3)
    assert added(made, "a", [(0, 5)]) == (Addition(0, 5, "((0+3)+(1+4))+(2)"),)


def test_one_device_for_each_layer_adds_in_the_ordinary_order() -> None:
    """Nothing is said of it, on however many devices the task is trained."""
    for plan in (handmade.pipeline(), handmade.streamed(), handmade.gang()):
        assert additions(plan) == {}


def test_the_order_of_the_list_does_not_matter() -> None:
    """Ops come in the order of their streams and edges, wherever they stand."""
    ops = replicas((0, 2), (1, 3))
    later = sorted(ops, key=lambda op: op.stream, reverse=True)
    assert [op.id for op in later] != [op.id for op in ops]
    for listed in (ops, later):
        assert added(program(listed), "a", [(0, 1)]) == (Addition(0, 1, "(0+2)+(1+3)"),)


def test_cuts_within_layers_that_are_added_alike_do_not_matter() -> None:
    """Two shards side by side, or one; another order in between is told apart."""
    alike = program([*replicas((0,), (1,)), *replicas((0,), (1,), shard=1)])
    assert added(alike, "a", [(0, 3), (3, 5)]) == (Addition(0, 5, "(0)+(1)"),)
    other = program([*replicas((0,), (1,)), *replicas((1,), (0,), shard=1)])
    assert [one.sum for one in added(other, "a", [(0, 3), (3, 5)])] == ["(0)+(1)", "(1)+(0)"]
    mixed = program([*replicas((0,), (1,)), *replicas((0, 1), shard=1)])
    assert added(mixed, "a", [(0, 3), (3, 5)]) == (Addition(0, 3, "(0)+(1)"),)


def test_programs_of_several_kinds_have_no_one_order() -> None:
    """Which replica has which microbatches differs from round to round."""
    plan = kinded("parallel", [[512, 512]] * 2, ((0, 1), (1, 1)))
    assert additions(plan) == {}
    (program,) = plan.programs
    assert additions(replace(plan, programs=(replace(program, kinds=()),)))


def test_programs_that_evaluate_add_nothing() -> None:
    """Whatever they are called."""
    plan = handmade.parallel()
    programs = tuple(replace(program, evaluates=True) for program in plan.programs)
    assert additions(replace(plan, programs=programs)) == {}
