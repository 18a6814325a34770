"""Tools for the caller's files in DIAL."""
