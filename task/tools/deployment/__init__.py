"""Tools behind which a DIAL deployment does the work."""
