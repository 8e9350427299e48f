"""Which route and which model a request goes to.

numpy's linear algebra stays on one thread. The products here take a fraction of a millisecond: a second thread makes them
slower on a busy machine (10 ms were seen for 0.1), and another number of threads would change the last digits of sums, which
replicas with other processors should share.
"""

import os

# Read when numpy is first imported, which nothing does before this package. Whoever sets it knows why.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
