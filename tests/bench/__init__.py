"""The benchmark: ganger beside other job queues, on one machine, in one run, taking turns. See BENCH.md."""
