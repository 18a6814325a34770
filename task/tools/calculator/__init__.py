"""An exact, bounded calculator."""
