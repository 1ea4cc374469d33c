"""Where tasks' bytes lie on the host, and who waits on the disk when it has no room for all."""

from planner.storage.host_store import housed
from planner.storage.scratch import apart
