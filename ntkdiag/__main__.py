"""`python -m ntkdiag`: the command line."""

import os
import sys

if __name__ == "__main__":
    # Python puts the working directory first on the path: only a case is imported from there.
    if sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    from ntkdiag.commands.command_line import main

    main()
