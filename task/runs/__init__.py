"""Recorded runs: observers, replay and comparison of traces."""
