"""The editor door: the Agent Client Protocol on the standard streams."""
