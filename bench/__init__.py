"""What the gateway costs, beside a bare relay and no gateway at all. `python -m bench --help`.

Needs nothing but the locked packages: the mock upstream and the load generator are asyncio protocols on uvloop.
"""
