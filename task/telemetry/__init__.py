"""Spans, metrics and log lines of a process, made while it works; they hold no content."""

# Of a folder in which several processes count together; the library reads it when it is imported.
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
