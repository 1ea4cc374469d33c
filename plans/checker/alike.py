"""Programs that differ in nothing but the name and place of their task are proven once.

A plan may have thousands of tasks of few shapes. `likeness` is the text of a program, its tasks
and their host buffers in which every name that begins with a task's is marked as such, and only
the host bytes of these buffers are counted. Two programs of equal likeness name equal things
equally often in equal places, so that no rule but those about the whole host store can tell them
apart.
"""

import hashlib
import re

import msgspec
from msgspec import structs

from plans.schema import Task
from plans.view import View

_ENCODE = msgspec.json.Encoder().encode
_STREAM = re.compile(r"\d+|host")


def likeness(view: View) -> bytes:
    """Equal for programs of which either all are sound in themselves or none is.

    Names inside JSON text begin after a quote or, in a program of several tasks, after the slash
    of a device's buffer; the marks hold characters that no JSON text has. A task that is called
    as streams begin (`0.compute`, `host.0`) is like no other.
    """
    program = view.program
    host = sorted((b for b in view.buffers.values() if b.space == "host"), key=lambda b: b.offset)
    moved, end, gaps = [], 0, 0  # bytes of others in between tell nothing apart
    for buffer in host:
        gaps += max(0, buffer.offset - end)
        end = max(end, buffer.offset + buffer.bytes)
        moved.append(structs.replace(buffer, offset=buffer.offset - gaps))
    tasks = [(f"{name}.", *_judged(task)) for name, task in view.tasks.items()]
    bare = structs.replace(program, name="", tasks=tuple(f"{name}." for name in program.tasks))
    text = _ENCODE([bare, tasks, moved])
    for number, name in enumerate(program.tasks):
        if not _STREAM.fullmatch(name):
            for lead in (b'"', b"/")[: len(program.tasks)]:
                text = text.replace(lead + name.encode() + b".", lead + b"\0%d." % number)
    return hashlib.sha256(text).digest()


def _judged(task: Task) -> tuple[object, ...]:
    """The facts of a task that the rules about a program look at."""
    sizes = task.batch_bytes, task.norm_bytes, task.tie_bytes
    tokens = task.microbatch if task.lengths else 0
    return task.microbatches, tokens, *sizes, task.crossing, task.shards, task.base
