"""The exit statuses of the command."""

from __future__ import annotations

#: Exit status -> what it says. Signals have 128 + their number.
STATUS = {
    0: "done",
    1: "a verdict is not 'holds', or two folders of records differ",
    2: "the command line is wrong, or a package is missing",
    3: "a trial failed, or a pass rule or your own code raised an error",
    4: "a file cannot be read or written: damaged record, full disk, no permission",
    5: "a defect of mindgap",
    129: "ended by hang-up (SIGHUP)",
    130: "ended by Ctrl-C (SIGINT)",
    141: "nobody reads the output any more",
    143: "ended by SIGTERM",
}
