"""`python -m epochlake.jobs.agent`: an agent, without the rest of the command line."""

from __future__ import annotations

import sys

from epochlake.jobs.agent.running import main

sys.exit(main())
