"""``python -m vllm_ashutdown.cli``: the command where no script is on the path."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
