"""Python code in a kernel of its own for every conversation, on a server of its own."""
