FORMAT = "perfetto"
ENDINGS = ("",)


def write(trace, out, window): ...
