"""The command ``mindgap``. One file per group of commands; commands that need no torch do not
import it.

Every way in which it ends has an exit status of its own (``mindgap.cli.status``), and bad input is
one line that names the argument, the rule and the value.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command and end the program with its exit status; Ctrl-C and a closed pipe end
    quietly.
    """
    from mindgap.cli.interrupt import end_on_signals

    end_on_signals()  # before anything that takes time
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started the command
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        # An ASCII terminal shows ≤ as \u2264.
        getattr(sys, name).reconfigure(errors="backslashreplace")
    try:
        status = _run()
        sys.stdout.flush()
    except BrokenPipeError:  # `mindgap list | head -1`
        # For the flush at the end of Python.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    raise SystemExit(status)


def _run() -> int:
    """Run the command and return its exit status. An error that is known prints one line on stderr:
    status 2 for a bad command line or setting, 4 for files that cannot be used. Any other error is
    a defect, which prints its traceback: status 5.
    """
    try:
        from mindgap.cli.app import app
    except ModuleNotFoundError as error:
        return _missing(error)
    from mindgap.base.check import RuleError
    from mindgap.lab.tasks.data.fetch import DataError
    from mindgap.record.schema import NoRecordsError, RecordError

    try:
        return int(app(standalone_mode=False) or 0)
    except BrokenPipeError:
        raise
    except SystemExit as error:  # typer's answer to a broken pipe
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        raise
    except ModuleNotFoundError as error:
        return _missing(error)
    except (RuleError, NoRecordsError) as error:
        return _say(str(error), 2)
    except (RecordError, DataError) as error:
        return _say(str(error), 4)
    except OSError as error:
        return _say(f"{error.filename or 'the file'}: {error.strerror or error}", 4)
    except Exception as error:
        if not hasattr(error, "exit_code"):
            import traceback

            traceback.print_exc()
            return _say("this is a defect of mindgap; please report the lines above", 5)
        # What typer says of the command line: one line, or the help where no command was named.
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        if "\n" in text:
            text = "a command must be named ('mindgap --help' lists them)"
        return _say(text, 2)


def _missing(error: ModuleNotFoundError) -> int:
    """Say which package to install, and return the status; a missing module of ours is raised."""
    if str(error.name).startswith("mindgap"):
        raise error
    return _say(f"the command needs the package {error.name}: pip install 'mindgap[lab]'", 2)


def _say(text: str, status: int) -> int:
    """Print an error and return the status that the program ends with."""
    text = f"mindgap: error: {text}"
    if sys.stderr.isatty():  # else one line, for programs
        import shutil
        import textwrap

        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr)
    return status
