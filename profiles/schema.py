"""The profile format: what one machine needs, in time and bytes, for every layer of every task.

Integers only, the unit in the name. Times are medians over samples with their spread. Bytes of
parameters, gradients and optimizer state are those of the aligned flat layout (every tensor
padded to `codec.ALIGNMENT`), so that a shard's bytes are exactly the sum of its layers'.
"""

from typing import Annotated, Literal

import msgspec

from profiles.units import LARGEST

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Threads = Annotated[int, msgspec.Meta(ge=1, le=1024)]
LONGEST_NAME = 512
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+$", max_length=200)]
Label = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
Precision = Literal["fp32", "bf16-autocast", "fp16-autocast", "bf16"]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]

VERSION = 1


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every value in a file: frozen, and an unknown field is an error."""


class Time(Struct, frozen=True):
    """A measured duration: median, 10th and 90th percentile over `samples` repetitions."""

    median_us: Count
    p10_us: Count
    p90_us: Count
    samples: Positive


class Rate(Struct, frozen=True):
    """A copy of n bytes lasts latency_us + n * 1e6 / bytes_per_s."""

    bytes_per_s: Positive
    latency_us: Count


LinkKind = Literal["h2d", "d2h", "p2p", "net", "d2d", "cast"]


class Link(Struct, frozen=True):
    """One direction between host and device: alone, and with the other direction busy too.

    p2p is a copy to another device, alone and while both directions to the host are busy; net one
    to a device of another node; d2d one inside the device's memory; cast how fast the host makes
    bf16 parameters from fp32 masters on their way h2d, in bytes of parameters."""

    kind: LinkKind
    alone: Rate
    both: Rate


class Emulation(Struct, frozen=True):
    """Link rates that a CPU device keeps by pacing its copies; its times are emulated.

    compute_slowdown: it computes so many times slower than this machine: ops really run, then last
    as long as the plan says. p2p_bytes_per_s: of what it sends to other devices; None: the same
    link takes it that goes to the host."""

    h2d_bytes_per_s: Positive
    d2h_bytes_per_s: Positive
    latency_us: Count
    compute_slowdown: Positive = 1
    p2p_bytes_per_s: Positive | None = None

    @property
    def words(self) -> str:
        """Words to show beside every time of such a device."""
        if self.compute_slowdown == 1:
            return "emulated"
        return f"emulated compute, {self.compute_slowdown} times slower"


DeviceKind = Literal["cpu", "cuda"]
GPU: DeviceKind = "cuda"


class Device(Struct, frozen=True):
    name: str
    kind: DeviceKind
    usable_bytes: Positive
    threads: Threads  # intra-op threads of one device
    links: tuple[Link, ...]
    emulation: Emulation | None = None


class Disk(Struct, frozen=True):
    """Files on the host's disk: of tasks' states that wait there."""

    usable_bytes: Positive
    read: Rate
    write: Rate


class Host(Struct, frozen=True):
    usable_bytes: Positive
    cores: Positive
    disk: Disk | None = None


class Numerics(Struct, frozen=True):
    """Switches of the whole process that change the bits of results.

    tf32: matrix products of fp32 may round their operands. deterministic: only kernels that give
    the same bits in every run."""

    tf32: bool = False
    deterministic: bool = False


class Machine(Struct, frozen=True):
    """Where the times come from. `load` devices computed at once while one was measured."""

    devices: Annotated[tuple[Device, ...], msgspec.Meta(min_length=1)]
    host: Host
    load: Positive
    numerics: Numerics = Numerics()


class Workload(Struct, frozen=True):
    """`file.py:function` or `package.module:function`, and a sha256 of what the task trains: its
    settings, its model's modules and the code that they call. settings: a few digits of the same
    of each setting, to say which is another one; none where nobody has noted them."""

    ref: str
    sha256: Sha256
    settings: dict[str, str] = {}


class Cut(Struct, frozen=True):
    """The way in which a model was cut when its layers were proven, so that a run cuts it alike.

    how: "sequential", the model lists its layers; "modules", calls of the modules at `paths` and
    what the model does between them; "graph", the operations of torch.export; "whole", one layer.
    samples: the model ran on so many samples of its first batch; 0: it did not run.
    grows: by name, the dimensions that grow with the batch of tensors for which that is not the
    first one alone; None: layers are for these samples only. versions: of the packages that the
    layers' calls and operations come from.
    """

    how: Literal["sequential", "modules", "graph", "whole"]
    paths: tuple[str, ...] = ()
    samples: Count = 0
    grows: tuple[tuple[str, tuple[Count, ...]], ...] | None = ()
    versions: str = ""


class LayerCost(Struct, frozen=True):
    """One layer at one microbatch size. Byte counts are of tensors beside the slab.

    in_bytes, out_bytes: the boundary before and after the layer (aligned).
    saved_bytes: alive after a forward with gradients, output included, until backward ends.
    forward_peak_bytes: most alive at once in a forward without gradients, output included.
    backward_peak_bytes: most alive at once in recompute + backward, output included.
    offload_bytes: what backward needs of that, packed into one flat; None when not measured.
    rng_draws: 32-bit draws a forward takes from the generator; None when it is not a constant
    number of plain draws, so that a microbatch's random numbers cannot be found in advance.
    The last layer's recompute_backward and backward include the loss.
    pack_backward, unpack_backward: a forward that packs its graph and the backward from there, and
    that backward alone; None when not measured.
    backward_input, backward_weight: the two parts of `backward`; left_bytes: alive between them,
    kept_grad_bytes of them gradients. input_peak_bytes: most alive at once in recompute + first
    part, whose graph stays whole until its end. None for a first layer, for one that gets other
    bits so, or when not measured.
    """

    microbatch: Positive
    in_bytes: Count
    out_bytes: Count
    saved_bytes: Count
    forward_peak_bytes: Count
    backward_peak_bytes: Count
    rng_draws: Count | None
    forward: Time
    recompute_backward: Time
    backward: Time
    offload_bytes: Count | None = None
    pack_backward: Time | None = None
    unpack_backward: Time | None = None
    backward_input: Time | None = None
    backward_weight: Time | None = None
    left_bytes: Count | None = None
    kept_grad_bytes: Count | None = None
    input_peak_bytes: Count | None = None


class Layer(Struct, frozen=True, kw_only=True):
    """A layer's state and its costs; tied parameters count in the first layer that holds them.

    update_peak_bytes: most alive at once in an update, beside the state that the first one makes.
    norm: how long the norms of its gradients take, None where updates do not wait for them.
    in_turn: its forward changes its buffers (BatchNorm), so that one device has to run all
    microbatches, in ascending order.
    """

    name: str
    param_bytes: Count
    grad_bytes: Count
    state_bytes: Count
    buffer_bytes: Count
    update_peak_bytes: Count
    update_device: Time
    update_host: Time
    norm: Time | None = None
    norm_peak_bytes: Count = 0
    in_turn: bool = False
    costs: Annotated[tuple[LayerCost, ...], msgspec.Meta(min_length=1)]


class BatchCost(Struct, frozen=True):
    """Bytes of one microbatch as it comes from the data: inputs and targets, aligned."""

    microbatch: Positive
    batch_bytes: Count


class Evaluation(Struct, frozen=True):
    """After every so many steps the loss of so many batches is taken, and nothing changes.

    batches: of samples that have lengths the rounds that a plan packs them into, 1 in a profile.
    owed: that after the steps done so far was not taken yet."""

    every: Positive
    batches: Positive
    owed: bool = False


class Lengths(Struct, frozen=True):
    """The tokens of every sample, as little-endian uint32 in a file beside the profile.

    A task with lengths has `batch` samples in a step: step t has samples t * batch and those that
    follow, and begins again after the last one. The size of its microbatches is their tokens.
    why_not: why no two sequences may share a microbatch; empty where they may."""

    sha256: Sha256
    samples: Positive
    tokens: Positive
    longest: Positive
    why_not: str = ""


class Counts(Struct, frozen=True):
    """The targets that a loss takes the mean of: those that are not `ignored`.

    tensor: their place among the tensors of inputs and targets. shifted: the first of each row has
    no loss."""

    tensor: Count
    shifted: bool
    ignored: Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]


class Parts(Struct, frozen=True):
    """The way from loss and gradients of a batch's parts to those of the whole, as far as known.

    kind: "additive", their mean; "weighted", their mean by what each counts; "whole", parts train
    something else, so that a batch stays whole unless microbatches are asked for, as they were
    where it says `asked`. why: what makes it so; of an additive kind, why it is not known.
    counts: what counts, where a task does not say that itself."""

    kind: Literal["additive", "weighted", "whole"] = "additive"
    why: Label = ""
    counts: Counts | None = None
    asked: bool = False

    @property
    def together(self) -> bool:
        """True if the batch stays whole."""
        return self.kind == "whole" and not self.asked


UNKNOWN = Parts(why="its profile does not say")


class Task(Struct, frozen=True, kw_only=True):
    name: Name
    workload: Workload
    steps: Positive
    batch: Positive
    optimizer: str
    batches: Annotated[tuple[BatchCost, ...], msgspec.Meta(min_length=1)]
    ties: tuple[tuple[Count, ...], ...] = ()  # groups of layer indices that share a parameter
    tie_bytes: tuple[Count, ...] = ()  # of gradients that each group shares; 0: not to be cut
    precision: Precision = "fp32"
    norm_bytes: Count = 0  # of all gradients' norms; 0: updates do not wait for them
    evaluation: Evaluation | None = None
    cut: Cut | None = None  # None: a run finds and proves the layers itself
    lengths: Lengths | None = None  # None: all samples are alike
    evaluation_lengths: Lengths | None = None  # of the samples of each evaluation
    parts: Parts = UNKNOWN
    base: Sha256 | None = None  # of all parameters that it does not train; None: it trains all
    layers: Annotated[tuple[Layer, ...], msgspec.Meta(min_length=1)]


class Profile(Struct, frozen=True, kw_only=True):
    format: Literal["profile"] = "profile"
    version: Literal[1] = 1
    machine: Machine
    tasks: Annotated[tuple[Task, ...], msgspec.Meta(min_length=1)]
    estimated: bool = False  # times from formulas, not from measurements
    provenance: dict[str, str] = {}

    @property
    def emulated(self) -> str:
        """Words to show beside every time: how devices are emulated; empty for real ones."""
        return next((d.emulation.words for d in self.machine.devices if d.emulation), "")
