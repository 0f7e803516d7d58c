"""The two ways a command ends badly, so that the command line knows which exit code to give."""


class InputError(ValueError):
    """Bad input: one sentence that names the value, the rule and the way out. Exit code 2."""


class RunFailed(RuntimeError):
    """The run could not go on although the input was right. Exit code 1; the message says where the log is."""
