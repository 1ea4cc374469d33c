"""How a model is taken apart into layers that run one after another; see executor/layers.py."""
