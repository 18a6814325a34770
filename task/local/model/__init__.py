"""The small model that the product brings along: weights, process, prompt, decisions."""
