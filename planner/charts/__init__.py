"""Pictures of plans, runs and profiles. matplotlib is loaded when something is drawn."""
