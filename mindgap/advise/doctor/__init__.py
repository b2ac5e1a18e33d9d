"""The training doctor: runs a user's training for a short time, names the likeliest cause of its
trouble, and tries the cure on a copy.

One file per task: ``patient`` reads what the user hands over, ``course`` follows one run,
``readings`` turns it into findings, ``causes`` is the table that weighs them, ``cures`` changes a
copy, ``examination`` asks in the right order and answers.
"""
