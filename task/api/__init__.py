"""The HTTP front door: OpenAI's API, the platform API, sessions, runs, traces and approvals."""
