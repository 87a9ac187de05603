"""What is wrong with the words of a command, in one message."""

from ntkdiag import errors


class UsageError(errors.InvalidInputError):
    """Words of a command that cannot be used; the command ends with status 2."""


def usage_error(call: str, expected: str, got: str) -> UsageError:
    """The error for words such as ``ntkdiag plan net``; it names the help of their command."""
    command = " ".join(call.split()[:2])
    return UsageError(call=call, expected=expected, got=got, do=f"See: {command} --help")
