"""`python -m eagle3lab`: run, plan and look at the notebooks (see eagle3lab.workbench.cli)."""

import sys

from eagle3lab.workbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
