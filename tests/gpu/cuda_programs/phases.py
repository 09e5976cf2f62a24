"""A program that is busy for shares of its time, for ``figures_check.py``: SHARE:SECONDS...

It prints ``PHASE share begin end`` after each, in seconds since the epoch.
"""

import sys
import time

import torch

PERIOD_S = 0.1
matrix = torch.randn(4096, 4096, device="cuda")
product = matrix @ matrix
torch.cuda.synchronize()
for phase in sys.argv[1:]:
    share, seconds = (float(word) for word in phase.split(":"))
    began = now = time.time()
    while now < began + seconds:
        while share and time.time() < now + share * PERIOD_S:
            for _ in range(4):
                torch.mm(matrix, matrix, out=product)
            torch.cuda.synchronize()
        time.sleep(max(0, now + PERIOD_S - time.time()) if share < 1 else 0)
        now = time.time()
    print("PHASE", share, began, now, flush=True)
