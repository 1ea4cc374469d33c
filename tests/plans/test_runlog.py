"""What a run's logs say of its starts."""

from pathlib import Path

from plans import runlog
from plans.runlog import Header, Line, OpRecord, RestartRecord


def test_a_start_lasts_until_its_first_op_and_counts_once(tmp_path: Path) -> None:
    """A run changed its plan twice, and was started again by the second one: each log begins with
    the restarts of those before it, without their ops. What was not measured does not count."""
    header = Header(plan_sha256="0" * 64, started="", devices=("cpu0",), microbatch={})
    first, second = RestartRecord("", 100, 40), RestartRecord("", 300, 50)
    killed, unknown = RestartRecord("", 400, 60), RestartRecord("", 500)
    logs: dict[str, list[Line]] = {
        "log.1.jsonl": [_op(0)],
        "log.2.jsonl": [first, _op(107)],
        "log.jsonl": [first, second, _op(310), killed, _op(411), unknown, _op(520)],
    }
    for name, lines in logs.items():
        (tmp_path / name).write_bytes(runlog.encode([header, *lines]))
    assert runlog.starts_us(tmp_path) == [40 + 7, 50 + 10, 60 + 11]


def _op(start_us: int) -> OpRecord:
    return OpRecord(0, "a.s0.F0", 0, start_us, start_us + 9)
