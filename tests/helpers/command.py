"""The command line, called from a test."""

from unskew.cli import main


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    """The exit code, standard output and standard error."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as left:
        code = left.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err
