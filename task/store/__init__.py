"""What outlives a request: sessions, runs with their events, traces, approvals, grants and keys, in one database."""
