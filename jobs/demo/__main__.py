"""`python -m epochlake.jobs.demo`."""

import sys

from epochlake.jobs.demo.command import run

if __name__ == "__main__":
    sys.exit(run())
