"""`python -m benchmarks.wild`."""

import sys

from benchmarks.wild.run import main

sys.exit(main())
