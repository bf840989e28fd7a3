"""Settings for the tests that need a GPU."""

import os

# Some tests start a second process that uses the same GPU: this one must not take its memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
