"""Questions to the user about calls: their text, how long they stay open, and what their answers allow."""
