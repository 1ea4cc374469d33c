"""Where tasks' bytes lie on the host, who waits on the disk when it has no room for all, and how
they come to other nodes."""

from planner.storage.host_store import disk_bound, housed
from planner.storage.scratch import apart
from planner.storage.transfers import networked

__all__ = ["apart", "disk_bound", "housed", "networked"]
