"""`python -m anchor3r`, which is what torchrun starts."""

import sys

from anchor3r.cli.main import main

sys.exit(main())
