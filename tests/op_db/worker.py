"""Compares the operators whose numbers come in on the standard input, and says a line of JSON for each.

A crash or a hang takes this process, not the one that counts.
"""

import dataclasses
import json
import sys

import torch
from torch.testing._internal.common_methods_invocations import op_db

from ral_trace import backend
from tests.op_db.compare import differences


def main(device: str, dtype_name: str, limit: str) -> None:
    backend.enable("host:1,sim:1")
    torch.set_num_threads(1)
    dtype = getattr(torch, dtype_name)
    for line in sys.stdin:
        op = op_db[int(line)]
        skipped = dtype not in op.supported_dtypes("cpu")
        found = [] if skipped else list(differences(op, device, dtype, int(limit)))
        print(json.dumps({"skipped": skipped, "found": [dataclasses.asdict(each) for each in found]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
