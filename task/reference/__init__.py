"""Documented names that nothing in the product calls; their documented module paths are aliases of these."""
