"""Replay of a checked plan with PyTorch: a plan is data, and the executor decides nothing."""
