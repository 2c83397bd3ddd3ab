FORMAT = "parquet"
ENDINGS = ("",)


def write(trace, out, window): ...
