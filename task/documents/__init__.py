"""Reading documents: bytes in, text in blocks out. Pure functions that can run in any process."""
