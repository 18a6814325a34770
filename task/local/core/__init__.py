"""An embedded stand-in for DIAL Core: keys, files, models and applications."""
