"""Tasks that have a frozen base in common are planned as one, and the plan is taken apart again."""

from planner.bases.groups import Grouping, groupings
from planner.bases.joined import joined
from planner.bases.parted import parted
from planner.bases.reasons import told
