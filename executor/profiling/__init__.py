"""The cost of layers, links and disks, measured; refusals of models that cannot be trained."""
