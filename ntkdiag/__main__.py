"""`python -m ntkdiag`: the command line."""

from ntkdiag.commands.command_line import main

if __name__ == "__main__":
    main()
