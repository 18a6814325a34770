"""Spans, metrics and log lines of a process, made while it works; they hold no content."""
