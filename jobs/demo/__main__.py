"""`python -m epochlake.jobs.demo`."""

import sys

from epochlake.jobs.demo import main

if __name__ == "__main__":
    sys.exit(main())
