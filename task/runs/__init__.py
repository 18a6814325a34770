"""Runs: prepared, answered in the background, followed, stopped and resumed; and their traces."""
