FORMAT = "own_json"
ENDINGS = ("",)


def write(trace, out, window): ...
