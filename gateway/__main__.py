"""`python -m gateway`: the same program as `hermes-gateway`."""

import sys

from gateway.cli import main

sys.exit(main())
