"""Takes models apart into layers that run one after another; see executor/layers.py."""
