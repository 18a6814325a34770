"""Tools the model may call, and the toolbox that runs the calls of a turn."""
