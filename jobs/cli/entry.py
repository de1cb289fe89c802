"""The `epochlake` command of the shell: what a Ctrl-C says from the first moment on.

Nothing but the standard library is imported before an interrupt is handled. What Python itself does
before this module is out of reach.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

INTERRUPTED = 130
NOTHING = "interrupted; nothing was committed"


def run() -> None:
    """Run the command line of this process, and end with its exit code."""
    # The last thing that is done at the end: from then on Python lets a Ctrl-C end the process by the signal.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, _leave_at_once)
    from epochlake.jobs.cli.main import main

    with suppress(Exception):
        import epochlake.jobs.cli.app  # noqa: F401  # what fails here is told by `main`
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = main(sys.argv[1:])
    # What libraries clean up at the end may take a while: a Ctrl-C then is no error of theirs.
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if code == INTERRUPTED:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _leave_at_once(signum: int, frame: FrameType | None) -> None:
    """While modules are imported: an exception there can come out as any other error of any library."""
    said = f"epochlake: {NOTHING}"
    if "json" in " ".join(sys.argv[1:]).replace("=", " ").split():
        # As `main` says it, by hand: nothing that could format it may be imported yet. One word more may be wrong here
        # (a table called json), and an error as a document harms nobody.
        body = f'{{\n    "type": "Interrupted",\n    "message": "{NOTHING}",\n    "exit_code": {INTERRUPTED}\n  }}'
        said = f'{{\n  "error": {body}\n}}'
    os.write(2, f"{said}\n".encode())
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    run()
