"""The one error family a user meets; the command line prints it without a traceback."""


class Anchor3RError(Exception):
    """Says what was wrong, which file or value it concerns, and what to do about it."""
