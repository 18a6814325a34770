"""The platform API: chat, sessions, traces, runs and approvals."""
