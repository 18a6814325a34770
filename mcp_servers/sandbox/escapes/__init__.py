"""The escape list: what a sandboxed program must not manage, tried for real."""
