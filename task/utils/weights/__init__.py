"""The embedded model's weights: where they come from, where they lie, and that they are the known ones."""
