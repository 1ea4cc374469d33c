"""Errors of a user: one line each, with the exit code it ends the command with."""


class GantryError(Exception):
    """The message is one line: what, where, both numbers, remedy."""

    exit_code = 1


class FormatError(GantryError):
    """A file is missing, not JSON, of another format or version, or breaks its schema.

    The message says which file, where in it, what is wrong.
    """

    exit_code = 2
