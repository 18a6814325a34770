"""One module for each step; what was released once never changes."""
