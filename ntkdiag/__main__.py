"""`python -m ntkdiag`: the command line."""

from ntkdiag.cli import main

if __name__ == "__main__":
    main()
