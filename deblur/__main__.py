"""`python -m deblur` is the command `deblur`."""

import sys

from deblur.cli import main

if __name__ == "__main__":
    sys.exit(main())
