"""One page about a plan and its run that needs neither a network nor a server."""

from planner.report.page import page
from planner.report.report import Report, Table, report
from planner.report.timeline import Timeline, timeline
