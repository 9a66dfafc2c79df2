"""`python -m dspark_ext.cli`: the same as `dspark-ext`."""

import sys

from .main import main

sys.exit(main())
