"""Workloads that come with Gantry, written as a user would write theirs."""
