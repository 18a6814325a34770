"""The embedding model in a process of its own, shared by the agents of one host."""
