"""The terminal front door, and the framework's documented classes that belong to it."""
