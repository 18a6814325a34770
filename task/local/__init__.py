"""The stand-ins that `make run` brings along: a DIAL Core and a model."""
