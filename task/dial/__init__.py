"""The DIAL door: requests, configuration, forms, and the faster route of chunks."""
