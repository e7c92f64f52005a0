"""A map handed to other programs: which part of it, with which cameras, in which format."""
