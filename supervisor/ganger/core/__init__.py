"""The decisions of the supervisor, and nothing else: no os, time, signal, threading or psycopg in here.

Events and the time go in, commands come out (``pool.Pool.handle``). Whoever drives it owns every effect: the loop in
production, a fake clock in the tests.
"""
