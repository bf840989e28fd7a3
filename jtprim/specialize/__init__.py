"""From a launch's arguments and a target to a compiled binary, through Triton's own code."""
