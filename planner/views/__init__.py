"""A plan for people, in words: what it is, what holds it up, and predicted against actual."""

from planner.views.alternatives import (
    ALTERNATIVE,
    alternative_row,
    describe_alternatives,
    ranked_alternatives,
)
from planner.views.book import START_US, book_summary, describe_book
from planner.views.compare import Comparison, compare
from planner.views.compare_table import Rows, compared, slow_words, table, to_json
from planner.views.devices import device_rows
from planner.views.differences import describe_differences, differences, reasons
from planner.views.focus import Focus, Window, aligned, focus
from planner.views.layout import bubble, layout_words, shards_on, stages
from planner.views.show import bounds, describe
from planner.views.stalls import parts_of_round, recomputed, waited_us
from planner.views.summary import step_words, summary
from planner.views.words import on_devices, ranges
