"""Samples of every length: which pipelines, packed how, in which kinds of rounds."""
