"""The tests."""

import os
import sys

# Where no byte code is written, each of the processes that the tests start compiles all files that
# it imports again: seconds.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
