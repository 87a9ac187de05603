"""What is wrong with the words of a command, in one message."""

from ntkdiag import errors


def usage_error(call: str, expected: str, got: str) -> errors.InvalidInputError:
    """The error for words such as ``ntkdiag plan net``; it names the help of their command."""
    command = " ".join(call.split()[:2])
    return errors.InvalidInputError(
        call=call, expected=expected, got=got, do=f"See: {command} --help"
    )
