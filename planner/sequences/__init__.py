"""Samples of every length: which pipelines, packed how, in which kinds of rounds."""

from planner.sequences.intervals import Division, Interval, Offer, divided
from planner.sequences.mixes import best_mix
from planner.sequences.planned import planned
from planner.sequences.refusals import with_lengths
