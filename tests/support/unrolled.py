"""A plain simulation of a repeating round, op by op."""

from planner.timeline import Entry


def unrolled(entries: list[Entry], rounds: int) -> list[dict[str, int]]:
    """Start of every op in every round, executed as soon as possible, op by op."""
    ends: dict[tuple[str, int], int] = {}
    starts: list[dict[str, int]] = []
    streams: dict[str, list[Entry]] = {}
    for item in entries:
        streams.setdefault(item.op.stream, []).append(item)
    heads = [
        (r, name, i) for r in range(rounds) for name, q in streams.items() for i in range(len(q))
    ]
    starts = [{} for _ in range(rounds)]
    while heads:
        rest = []
        for r, name, i in heads:
            item = streams[name][i]
            needs = [(a[:-3], r - 1) if a.endswith("@-1") else (a, r) for a in item.op.after]
            if i:
                needs.append((streams[name][i - 1].op.id, r))
            elif r:
                needs.append((streams[name][-1].op.id, r - 1))
            needs = [n for n in needs if n[1] >= 0]
            if any(n not in ends for n in needs):
                rest.append((r, name, i))
                continue
            start = max((ends[n] for n in needs), default=0)
            starts[r][item.op.id] = start
            ends[item.op.id, r] = start + item.us
        assert len(rest) < len(heads)
        heads = rest
    return starts
