"""`python -m dspark_ext_command`: the command `dspark-ext`, where it is not on the PATH."""

import sys

from . import main

sys.exit(main())
