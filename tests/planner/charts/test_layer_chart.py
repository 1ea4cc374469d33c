"""A profile in words and bars."""

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support import synthetic

from planner.charts import layer_chart
from profiles.schema import Profile

TASK = synthetic.task("chain", layers=5, seed=1)
PROFILE = Profile(machine=synthetic.machine(usable_bytes=1 << 26), tasks=(TASK,))
SIZE = TASK.layers[0].costs[0].microbatch


def test_words_name_device_links_and_each_tasks_sums() -> None:
    told = layer_chart.describe(PROFILE)
    total = sum(layer.param_bytes for layer in TASK.layers)
    assert "synthetic (cpu): 64.0 MiB; times are emulated" in told
    assert "h2d: 1 GB/s alone" in told
    assert f"{total / (1 << 20):.1f} MiB" in told.splitlines()[-1]


def test_bars_of_a_layer_add_up_to_its_times_and_bytes() -> None:
    times, sizes = Figure().subplots(1, 2)
    layer_chart.draw_times(TASK, SIZE, times)
    layer_chart.draw_bytes(TASK, SIZE, sizes)
    assert tops(times) == pytest.approx(
        [
            (c.forward.median_us + c.backward.median_us + layer.update_device.median_us) / 1_000
            for layer in TASK.layers
            for c in layer.costs[:1]
        ]
    )
    assert tops(sizes) == pytest.approx(
        [
            (layer.param_bytes + layer.grad_bytes + layer.state_bytes + c.saved_bytes) / (1 << 20)
            for layer in TASK.layers
            for c in layer.costs[:1]
        ]
    )


def tops(ax: Axes) -> list[float]:
    """Where the highest bar of each layer ends."""
    columns = zip(*ax.containers, strict=True)
    return [max(bar.get_y() + bar.get_height() for bar in column) for column in columns]


def test_a_size_that_was_not_measured_is_named() -> None:
    with pytest.raises(ValueError, match="microbatch 3 was not measured"):
        layer_chart.draw_times(TASK, 3, Figure().subplots())


def test_compute_per_sample_is_that_of_the_microbatch_shared_out() -> None:
    ax = Figure().subplots()
    layer_chart.draw_microbatches(TASK, ax)
    costs = [layer.costs[0] for layer in TASK.layers]
    busy = sum(cost.forward.median_us + cost.backward.median_us for cost in costs)
    assert ax.patches[0].get_height() == pytest.approx(busy / SIZE / 1_000)
