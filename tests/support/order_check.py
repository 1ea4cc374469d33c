"""A check that an order is complete, in a sequence that can run, and within memory; and how long
its devices take."""

from collections import Counter
from collections.abc import Sequence

from planner.orders import InvalidOrder, Order, Pass, Pipeline, peaks, timed
from planner.orders.timing import Network, name, spans_of


def check(pipeline: Pipeline, order: Order) -> None:
    """InvalidOrder where a pass is missing, twice, on a wrong device or too early, where gradients
    are not added by ascending microbatch, where devices wait in a circle, or memory is exceeded."""
    _complete(pipeline, order)
    for device, line in enumerate(order):
        _ascending(device, line)
    timed(pipeline, order)
    for device, peak in enumerate(peaks(pipeline, order)):
        if pipeline.limits is not None and peak > pipeline.limits[device]:
            raise InvalidOrder(
                f"passes on device {device} hold {peak}, but its limit is {pipeline.limits[device]}"
            )


def spans(pipeline: Pipeline, order: Order) -> tuple[int, ...]:
    """Each device's time from the start of its first pass to the end of its last.

    Ends are as early as they can be, and then starts as late as that allows. The largest span is
    the time between one round and the next.
    """
    network = Network.of(pipeline, order)
    return tuple(spans_of(network, network.lines))


def _complete(pipeline: Pipeline, order: Order) -> None:
    """Every microbatch of a shard has its passes, once each, on one device, in turn."""
    if len(order) != pipeline.devices:
        raise InvalidOrder(f"the order is for {len(order)} devices of {pipeline.devices}")
    found: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for device, line in enumerate(order):
        for kind, shard, microbatch in line:
            found.setdefault((shard, microbatch), []).append((device, kind))
    for shard in range(pipeline.shards):
        forward = "F" if pipeline.has_forward(shard) else ""
        for microbatch in range(pipeline.microbatches):
            got = found.pop((shard, microbatch), [])
            if len({device for device, _ in got}) > 1:
                raise InvalidOrder(f"microbatch {microbatch} of shard {shard} is on two devices")
            kinds = "".join(kind for _, kind in got)
            if kinds not in (forward + "B", forward + "IW"):
                raise InvalidOrder(
                    f"microbatch {microbatch} of shard {shard} has the passes {kinds or 'none'}, "
                    f"not {forward}B or {forward}IW"
                )
    for shard, microbatch in found:
        raise InvalidOrder(f"there is no microbatch {microbatch} of shard {shard}")


def _ascending(device: int, line: Sequence[Pass]) -> None:
    """Gradients of a shard are added in the same sequence in any order."""
    newest: Counter[int] = Counter()
    for item in line:
        if item.kind in "BW":
            if item.microbatch < newest[item.shard]:
                raise InvalidOrder(
                    f"{name(item)} on device {device} adds its gradients after a later microbatch"
                )
            newest[item.shard] = item.microbatch
