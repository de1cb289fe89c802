"""Put the small files of replica tables together.

The job of `epochlake compact --spark`, for `spark-submit` and schedulers: the same options, the same exit codes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from epochlake.jobs.cli.main import main as command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job with these options (default: the process's) and return its exit code."""
    return command_line(["compact", "--spark", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
