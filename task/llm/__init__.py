"""Chat models: backends that stream deltas for messages and tool schemas."""
