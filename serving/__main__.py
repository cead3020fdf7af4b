"""`python -m serving`: see `serving.command`."""

import os
import signal
import sys

INTERRUPTED = 130

if __name__ == "__main__":
    # Until the server handles ctrl-C itself there is nothing to bring in order, and an exception in the midst of an
    # import would be told as that import's failure.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    from serving.command import main

    sys.exit(main(sys.argv[1:]))
